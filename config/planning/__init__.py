"""Machine, settings and archives to the plan: reading (read_facts) is done before, rendering (config.render)
after.

Each decided value that depends on machine or settings has a reason in Plan.reasons, under its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from config.errors import ConfigError, FitError
from config.files import render_id_list
from config.plan import InstancePlan, Libraries, Plan
from config.planning import models, proxy
from config.planning.backends import PRECISIONS, choose_variants, find_need
from config.planning.batching import DEFAULT_SLO_P99_MS, list_sizes, list_timed
from config.planning.environment import plan_libraries
from config.planning.facts import Facts, read_facts
from config.planning.instances import count_proxy_mib, draft_instance, list_counts, split_machine
from config.planning.layout import check_sizes
from config.planning.profile import NO_PROFILE, BatchProfile, ModelJob, ProfileJob, read_profile
from config.proxy import GENERATIONS, MAX_INSTANCES, PORTS_OF_INSTANCE
from config.tuned import NOT_TUNED, Tuned
from handlers.backends.catalogue import BACKENDS, SWITCHED

__all__ = [
    "DEFAULT_SLO_P99_MS", "NO_PROFILE", "PRECISIONS", "BatchProfile", "Facts", "find_need", "list_sizes",
    "make_plan", "make_profile_job", "read_facts", "read_profile",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A plan, as far as no batch changes it."""

    libraries: Libraries
    variants: Mapping[str, str]
    """By kit model (catalogue.name_variant)."""
    instances: Mapping[str, InstancePlan]
    """By name; without models."""
    why: dict[str, dict[str, str]]
    """Reasons by instance, those of the whole plan under ""; by path within it."""


def make_profile_job(facts: Facts, tuned: Tuned = NOT_TUNED) -> ProfileJob:
    """What `python -m models time` is to time: the kit's models, in the places of their workers."""
    return _make_job(facts, _draft(facts, tuned, "a"))


def make_plan(
    facts: Facts, *, profile: BatchProfile = NO_PROFILE, tuned: Tuned = NOT_TUNED, generation: str = "a"
) -> Plan:
    """Everything decided; ConfigError where something asked for cannot be. `generation`: a or b."""
    settings, draft = facts.settings, _draft(facts, tuned, generation)
    chosen, why = profile.select(_make_job(facts, draft)), draft.why
    plans = {
        name: models.plan_models(one, facts, draft.variants, chosen, tuned, why[name])
        if one.kit
        else models.plan_foreign(one, facts, why[name])
        for name, one in draft.instances.items()
    }
    front = proxy.plan_proxy(
        settings,
        models=len(facts.archives),
        cores=sum(len(one.worker_cpus) * one.cores_per_worker for one in plans.values()),
        memory_mib=count_proxy_mib(facts.machine),
        why=why[""],
    )
    return Plan(
        settings=settings.model_dump(mode="json", exclude_defaults=True), machine=facts.machine.to_dict(),
        live=facts.live, package_set=facts.package_set, prefix=facts.prefix, model_store=facts.model_store,
        run_dir=facts.run_dir, generation=generation, slo_p99_ms=models.find_limit_ms(settings, tuned),
        libraries=draft.libraries, proxy=front, instances=plans, profile=chosen.raw,
        reasons={
            f"{name}.{path}".lstrip("."): reason for name, own in why.items() for path, reason in own.items()
        },
    )  # fmt: skip


def _draft(facts: Facts, tuned: Tuned, generation: str) -> _Draft:
    """With as many instances as fit of what would be best."""
    machine, settings, mixed = facts.machine, tuned.fill(facts.settings), bool(facts.kit and facts.foreign)
    models.check_settings(facts)
    variants, why_variants = choose_variants(facts, tuned)
    why: dict[str, str] = {}
    libraries = plan_libraries(facts, why)
    proxy.check_names(facts.archives)
    if facts.live and facts.installed.haproxy is None:
        raise ConfigError("haproxy is not on this machine: run `make setup`")
    check_sizes(settings, machine)
    why_tuned = {
        path: tuned.explain()
        for setting, path in (("workers", "worker_cpus"), ("cores_per_worker", "cores_per_worker"))
        if setting in tuned.chosen and getattr(facts.settings, setting) is None
    }
    counts, too_small = list_counts(machine, settings, mixed=mixed), ""
    for count, reason in counts.items():
        workers = settings.workers and settings.workers // (count - mixed)
        own = settings.model_copy(update={"workers": workers})
        whys: dict[str, dict[str, str]] = {"": why}
        instances = {}
        try:
            for number, share in enumerate(split_machine(machine, count), start=1):
                # Beside kit models the last instance is that of archives that others made.
                kit, name = bool(facts.kit) and not (mixed and number == count), f"{generation}{number}"
                place = GENERATIONS.index(generation) * MAX_INSTANCES + number
                port = settings.port + PORTS_OF_INSTANCE * place
                whys[name] = {}
                instances[name] = draft_instance(
                    facts, share, own, variants, libraries, name=name, kit=kit, port=port, why=whys[name]
                )
                whys[name] |= {**why_tuned, **(why_variants if kit else {})}
        except FitError as problem:
            of = f"instance {name} of {count}, with CPUs {render_id_list(share.cpus_allowed)}"
            do = "; fewer instances have more each: INSTANCES=1" if count > 1 else ""
            error = FitError(f"{problem} ({of}{do})")
            if count == min(counts):
                raise error from problem
            too_small = too_small or str(error)
            continue
        why["instances"] = f"more would be too small: {too_small}" if too_small else reason
        return _Draft(libraries=libraries, variants=variants, instances=instances, why=whys)
    raise AssertionError("there is always one instance to try")


def _make_job(facts: Facts, draft: _Draft) -> ProfileJob:
    """Its settings are nothing of what is chosen by the profile."""
    kit, environment = [one for one in draft.instances.values() if one.kit], {}
    cores = min((one.cores_per_worker for one in kit), default=1)
    if kit:
        # The files themselves: the names the launcher looks for are linked when a server starts.
        files = [path for path in (draft.libraries.openmp_path, draft.libraries.allocator_path) if path]
        own = {"OMP_NUM_THREADS": str(cores), "LD_PRELOAD": ":".join(files)}
        # The switch that names a backend is not read: what is timed is named by the job.
        switches = {BACKENDS[backend].switch_variable for backend in SWITCHED.values()}
        seen = {**kit[0].environment, **kit[0].worker_environment, **own}
        environment = {name: str(value) for name, value in sorted(seen.items()) if name not in switches}
    return ProfileJob(
        settings={
            "cpu_model": facts.machine.model_name,
            "slots": [list(cpus) for one in kit for cpus in one.worker_cpus],
            "threads": cores,
            "off": sorted(facts.settings.off),
            "environment": environment,
        },
        models={
            one.name: ModelJob(variant=draft.variants[one.name], batches=list_timed(one, facts.settings.mode))
            for one in facts.kit
        },
    )
