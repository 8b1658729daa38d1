"""Machine, settings and archives to the plan: reading (read_facts) is done before, rendering (config.render)
after.

Each decided value that depends on machine or settings has a reason in Plan.reasons, under its path.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from config.archives import (
    FOREIGN_SUFFIX,
    ForeignArchive,
    ModelDefinition,
    check_imports,
    read_definitions,
    read_foreign,
)
from config.errors import ConfigError, FitError
from config.files import render_id_list
from config.installed import list_packages, read_installed
from config.plan import INSTANCES_FOLDER, STORE_FOLDER, InstancePlan, Libraries, Plan
from config.planning import instances, models, proxy, resources
from config.planning.backends import (
    PRECISIONS,
    check_backends,
    check_variants,
    choose_package_set,
    choose_variants,
    find_backend,
    find_need,
)
from config.planning.batching import DEFAULT_SLO_P99_MS, list_sizes, list_timed
from config.planning.environment import (
    plan_environment,
    plan_profile_environment,
    plan_properties,
    plan_worker_environment,
)
from config.planning.facts import Facts
from config.planning.instances import Draft, Share
from config.planning.launcher import UNBOUND, Launch, choose_launch
from config.planning.layout import check_sizes, choose_layout
from config.planning.profile import NO_PROFILE, BatchProfile, ModelJob, ProfileJob, read_profile
from config.settings import Settings
from config.topology import read_topology
from config.tuned import NOT_TUNED, Tuned
from handlers.backends.catalogue import DEFAULT_SET, name_store

__all__ = [
    "DEFAULT_SLO_P99_MS", "NO_PROFILE", "PRECISIONS", "BatchProfile", "Facts", "ProfileJob", "find_need",
    "list_sizes", "make_plan", "make_profile_job", "read_facts", "read_profile",
]  # fmt: skip
CHECKOUT = Path(__file__).resolve().parents[2]


def read_facts(settings: Settings) -> Facts:
    """Read everything; ConfigError for an archive that is missing or cannot be served."""
    prefix = Path(settings.prefix or sys.prefix).absolute()
    package_set = choose_package_set(settings, prefix)
    store = Path(settings.model_store or CHECKOUT / name_store(package_set)).absolute()
    asked = {"BACKEND": settings.backend.get("*", ""), "PRECISION": settings.precision}
    build = " ".join(["make models", *(f"{name}={value}" for name, value in asked.items() if value)])
    paths = [one for one in settings.models if one.endswith(FOREIGN_SUFFIX)]
    names = sorted({*settings.models} - {*paths})
    archives: dict[str, ModelDefinition | tuple[ForeignArchive, ...]] = {
        one.name: one for one in read_definitions(store, names, build)
    }
    for archive in map(read_foreign, map(Path, dict.fromkeys(paths))):
        if not settings.topology:
            check_imports(archive, list_packages(prefix))
        versions = archives.get(archive.name, ())
        others = (
            ["the kit's model"]
            if isinstance(versions, ModelDefinition)
            else [one.version for one in versions]
        )
        if archive.version in others or isinstance(versions, ModelDefinition):
            raise ConfigError(
                f"MODELS has two archives of {archive.name} {archive.version}: got {archive.path} beside "
                f"{others[0]}; serve them by two servers, or pack one with another --model-name or --version"
            )
        archives[archive.name] = (*versions, archive)
    files = [
        one.path.name for versions in archives.values() if isinstance(versions, tuple) for one in versions
    ]
    if twice := [name for name in files if files.count(name) > 1]:
        raise ConfigError(
            f"MODELS has two files of one name, {twice[0]}, which one model store cannot have; rename one"
        )
    return Facts(
        settings=settings, machine=read_topology(settings.topology or "/"), archives=archives,
        installed=read_installed(prefix), package_set=package_set, prefix=str(prefix), model_store=str(store),
        run_dir=str(Path(settings.run_dir).resolve()),
    )  # fmt: skip


def make_profile_job(facts: Facts, tuned: Tuned = NOT_TUNED) -> ProfileJob:
    """What `python -m models time` shall time: the kit's models, in the places of their workers."""
    return _make_job(facts, _draft_instances(facts, tuned, "a", {}))


def make_plan(
    facts: Facts, *, profile: BatchProfile = NO_PROFILE, tuned: Tuned = NOT_TUNED, generation: str = "a"
) -> Plan:
    """Everything decided; ConfigError where something asked for cannot be. `generation`: a or b."""
    why: dict[str, str] = {}
    drafts = _draft_instances(facts, tuned, generation, why)
    chosen = profile.select(_make_job(facts, drafts))
    plans = {draft.name: _plan_instance(facts, draft, chosen, tuned) for draft in drafts}
    for draft in drafts:
        why |= {f"{draft.name}.{path}": reason for path, reason in draft.why.items()}
    return Plan(
        settings=facts.settings.model_dump(mode="json", exclude_defaults=True),
        machine=facts.machine.to_dict(), live=facts.live, package_set=facts.package_set, prefix=facts.prefix,
        model_store=facts.model_store, run_dir=facts.run_dir, generation=generation,
        slo_p99_ms=models.find_limit_ms(facts.settings, tuned), libraries=drafts[0].libraries,
        proxy=proxy.plan_proxy(
            facts.settings,
            models=len(facts.archives),
            cores=sum(draft.layout.used for draft in drafts),
            memory_mib=instances.count_proxy_mib(facts.machine),
            why=why,
        ),
        instances=plans, profile=chosen.raw, reasons=why,
    )  # fmt: skip


def _draft_instances(facts: Facts, tuned: Tuned, generation: str, why: dict[str, str]) -> list[Draft]:
    """As many as fit of what would be best."""
    check_backends(facts)
    libraries = resources.plan_libraries(facts.settings, facts.installed, facts.prefix, facts.live, why)
    variants, why_variants = choose_variants(facts, tuned)
    check_variants(facts, variants)
    proxy.check_names(facts.archives)
    if facts.live and facts.installed.haproxy is None:
        raise ConfigError("haproxy is not on this machine: run `make setup`")
    settings = tuned.fill(facts.settings)
    check_sizes(settings, facts.machine)
    kit, foreign = bool(facts.kit), bool(facts.foreign)
    counts, too_small = instances.list_counts(facts.machine, settings, mixed=kit and foreign), ""
    for count in counts:
        shares = instances.plan_shares(
            facts.machine, settings, count, kit=kit, foreign=foreign, generation=generation
        )
        try:
            drafts = [_draft(facts, share, variants, libraries, count) for share in shares]
        except FitError as problem:
            if count == counts[-1]:
                raise
            too_small = too_small or str(problem)
            continue
        why["instances"] = instances.explain_count(facts.machine, settings, count, too_small)
        for draft in drafts:
            draft.why.update(why_variants if draft.kit else {})
            for setting, path in (("workers", "worker_cpus"), ("cores_per_worker", "cores_per_worker")):
                if setting in tuned.chosen and getattr(facts.settings, setting) is None:
                    draft.why[path] = tuned.explain()
        return drafts
    raise AssertionError("there is always one instance to try")


def _draft(
    facts: Facts, share: Share, variants: Mapping[str, str], libraries: Libraries, count: int
) -> Draft:
    topology, settings, why = share.topology, share.settings, dict[str, str]()
    java = resources.plan_java(topology, why)
    if share.kit:
        needed = {
            f"{one.name} {variants[one.name]}": resources.need_mib(one, variants[one.name])
            for one in facts.kit
        }
    else:
        needed = {name: resources.need_foreign_mib(one) for name, one in facts.foreign.items()}
        settings = models.obey_workers(facts.foreign, settings)
    try:
        fitting = resources.count_workers_in_memory(topology, java, needed, settings)
        layout = choose_layout(topology, settings, fitting, why)
    except FitError as problem:
        of = f"instance {share.name} of {count}, with CPUs {render_id_list(topology.cpus_allowed)}"
        do = "; fewer instances have more each: INSTANCES=1" if count > 1 else ""
        raise FitError(f"{problem} ({of}{do})") from problem
    if not share.kit:
        why["memory_mib"] = (
            f"of a worker's memory only an estimate is known: {resources.FOREIGN_MIB} MiB + "
            f"{resources.FOREIGN_COPIES} × the archive"
        )
    if settings != share.settings:
        why["worker_cpus"] = "minWorkers of the archives' YAML: it beats config.properties"
    counted = facts.package_set != DEFAULT_SET
    launch = choose_launch(topology, layout.chunks, why, counted=counted, pinning=settings.pinning)
    names = {variants[one.name].split()[0] for one in facts.kit} if share.kit else {
        find_backend(facts, name) for name in facts.foreign
    }  # fmt: skip
    return Draft(
        **{**vars(share), "settings": settings}, models=facts.kit if share.kit else (),
        foreign={} if share.kit else facts.foreign, variants=variants, backends=names, libraries=libraries,
        java=java, layout=layout, launch=launch, why=why,
    )  # fmt: skip


def _make_job(facts: Facts, drafts: Sequence[Draft]) -> ProfileJob:
    """Its settings are nothing of what is chosen by the profile."""
    pinning, owns = facts.settings.pinning, facts.machine.owns_cpus
    launch = Launch(args=None if not pinning else "" if owns else UNBOUND, memory_nodes=())
    kit = [draft for draft in drafts if draft.kit]
    cores = min((draft.layout.cores for draft in kit), default=1)
    alike = [replace(one, launch=launch, layout=replace(one.layout, cores=cores)) for one in kit[:1]]
    return ProfileJob(
        settings={
            "cpu_model": facts.machine.model_name,
            "slots": [list(cpus) for draft in kit for cpus in draft.worker_cpus],
            "threads": cores,
            "off": sorted(facts.settings.off),
            "environment": plan_profile_environment(alike[0]) if alike else {},
        },
        models={
            one.name: ModelJob(variant=draft.variants[one.name], batches=list_timed(one, facts.settings.mode))
            for draft in kit[:1]
            for one in draft.models
        },
    )


def _plan_instance(facts: Facts, draft: Draft, profile: BatchProfile, tuned: Tuned) -> InstancePlan:
    folder, store, why = Path(facts.run_dir, INSTANCES_FOLDER, draft.name), facts.model_store, draft.why
    if draft.kit:
        plans, queue = models.plan_models(draft, profile, tuned, facts.settings)
        why["properties.ipex_enable"] = f"its models are computed by {', '.join(sorted(draft.backends))}"
    else:
        plans, queue = models.plan_foreign(draft, facts.settings)
        store = str(folder / STORE_FOLDER)
        why["properties.ipex_enable"] = (
            "by this environment's backend; TorchServe's BaseHandler applies ipex.optimize to eager models "
            "only, and it does nothing for TorchScript"
        )
    if draft.server_cpus:
        why["server_cpus"] = "confined to this instance's share, as nothing pins its workers"
    return InstancePlan(
        port=draft.port, kit=draft.kit, models=plans, cpus=draft.topology.cpus_allowed,
        memory_mib=draft.topology.memory_limit_mib, cores_per_worker=draft.layout.cores,
        worker_cpus=draft.worker_cpus, memory_nodes=draft.launch.memory_nodes, server_cpus=draft.server_cpus,
        launched=draft.launch.args is not None, pinned=draft.launch.bound, queue_size=queue, java=draft.java,
        environment=plan_environment(draft, plans), worker_environment=plan_worker_environment(draft),
        properties=plan_properties(draft, plans, queue, store=store, folder=folder),
    )  # fmt: skip
