"""Machine, settings and archives to the plan: reading (read_facts) is done before, rendering (config.render) after.

Each decided value that depends on machine or settings has a reason in Plan.reasons, under its path.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from config.installed import Installed, list_packages, read_installed
from config.plan import INSTANCES_FOLDER, InstancePlan, JavaPlan, Libraries, Plan
from config.planning import environment, instances, models, proxy, resources
from config.planning.backends import check_backends, choose_package_set, choose_variants, find_backend
from config.planning.batching import DEFAULT_SLO_P99_MS, list_sizes, list_timed
from config.planning.launcher import UNBOUND, Launch, choose_launch
from config.planning.layout import Layout, check_sizes, choose_layout
from config.planning.profile import NO_PROFILE, BatchProfile, ModelJob, ProfileJob, read_profile
from config.settings import Settings
from config.topology import Topology, read_topology
from config.tuned import NOT_TUNED, Tuned
from handlers.backends.catalogue import DEFAULT_SET, name_store

__all__ = [
    "DEFAULT_SLO_P99_MS", "NO_PROFILE", "BatchProfile", "Facts", "ProfileJob", "list_sizes", "make_plan",
    "make_profile_job", "read_facts", "read_profile",
]  # fmt: skip
CHECKOUT = Path(__file__).resolve().parents[2]
STORE_FOLDER = "store"
"""In the folder of an instance of archives that others made: a link to each, as model store."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a plan is made from, but for the batch profile and what was tuned."""

    settings: Settings
    machine: Topology
    archives: Mapping[str, ModelDefinition | tuple[ForeignArchive, ...]]
    """By model: the kit's definition, or the versions that others packed, the default one first."""
    installed: Installed
    package_set: str = DEFAULT_SET
    prefix: str
    """The virtual environment that TorchServe runs in, absolute."""
    model_store: str
    """The folder of the kit's archives, absolute."""
    run_dir: str

    @property
    def live(self) -> bool:
        """Whether it is this machine, and not a recorded one."""
        return not self.settings.topology

    @property
    def kit(self) -> list[ModelDefinition]:
        """The kit's models, by name."""
        found = [one for one in self.archives.values() if isinstance(one, ModelDefinition)]
        return sorted(found, key=lambda one: one.name)

    @property
    def foreign(self) -> dict[str, tuple[ForeignArchive, ...]]:
        """Models whose archives others made."""
        return {name: one for name, one in self.archives.items() if isinstance(one, tuple)}


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
        others = ["the kit's model"] if isinstance(versions, ModelDefinition) else [one.version for one in versions]
        if archive.version in others or isinstance(versions, ModelDefinition):
            raise ConfigError(
                f"MODELS has two archives of {archive.name} {archive.version}: got {archive.path} beside "
                f"{others[0]}; serve them by two servers, or pack one with another --model-name or --version"
            )
        archives[archive.name] = (*versions, archive)
    return Facts(
        settings=settings,
        machine=read_topology(settings.topology or "/"),
        archives=archives,
        installed=read_installed(prefix),
        package_set=package_set,
        prefix=str(prefix),
        model_store=str(store),
        run_dir=str(Path(settings.run_dir).resolve()),
    )


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """An instance before its batches are planned."""

    share: instances.Share
    layout: Layout
    launch: Launch
    java: JavaPlan
    server_cpus: tuple[int, ...] | None
    why: dict[str, str]

    @property
    def worker_cpus(self) -> tuple[tuple[int, ...], ...]:
        if self.launch.bound:
            return self.layout.chunks
        return (self.server_cpus or self.share.topology.cpus_allowed,) * len(self.layout.chunks)


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """What no batch changes."""

    settings: Settings
    """With what was tuned."""
    libraries: Libraries
    variants: Mapping[str, str]
    """By kit model (catalogue.name_variant)."""
    drafts: list[_Draft]
    why: dict[str, str]


def make_profile_job(facts: Facts, tuned: Tuned = NOT_TUNED) -> ProfileJob:
    """What `python -m models time` shall time: the kit's models, in the places of their workers."""
    return _make_job(facts, _decide(facts, tuned, "a"))


def make_plan(
    facts: Facts, *, profile: BatchProfile = NO_PROFILE, tuned: Tuned = NOT_TUNED, generation: str = "a"
) -> Plan:
    """Everything decided; ConfigError where something asked for cannot be. `generation`: a or b."""
    decided = _decide(facts, tuned, generation)
    chosen = profile.select(_make_job(facts, decided))
    plans = {one.share.name: _plan_instance(facts, decided, one, chosen, tuned) for one in decided.drafts}
    served = {name for plan in plans.values() for name in plan.models}
    why = dict(decided.why)
    for draft in decided.drafts:
        why |= {f"{draft.share.name}.{path}": reason for path, reason in draft.why.items()}
    return Plan(
        settings=facts.settings.model_dump(mode="json", exclude_defaults=True),
        machine=facts.machine.to_dict(),
        live=facts.live,
        package_set=facts.package_set,
        prefix=facts.prefix,
        model_store=facts.model_store,
        run_dir=facts.run_dir,
        generation=generation,
        slo_p99_ms=models.find_limit_ms(facts.settings, tuned),
        libraries=decided.libraries,
        proxy=proxy.plan_proxy(
            facts.settings,
            models=len(served),
            cores=sum(one.layout.used for one in decided.drafts),
            memory_mib=instances.count_proxy_mib(facts.machine),
            max_request_bytes=environment.MAX_REQUEST_BYTES,
            why=why,
        ),
        instances=plans,
        profile=chosen.raw,
        reasons=why,
    )


def _decide(facts: Facts, tuned: Tuned, generation: str) -> _Decided:
    settings, why = tuned.fill(facts.settings), dict[str, str]()
    check_backends(facts)
    libraries = resources.plan_libraries(settings, facts.installed, facts.prefix, facts.live, why)
    of_variants: dict[str, str] = {}
    variants = choose_variants(facts, tuned, of_variants)
    models.check_variants(facts.kit, variants, settings.off)
    proxy.check_names(facts.archives)
    if facts.live and facts.installed.haproxy is None:
        raise ConfigError("haproxy is not on this machine: run `make setup`")
    check_sizes(settings, facts.machine)
    kit, foreign = bool(facts.kit), bool(facts.foreign)
    counts, too_small = instances.list_counts(facts.machine, settings, mixed=kit and foreign), ""
    for count in counts:
        shares = instances.plan_shares(
            facts.machine, settings, count, kit=kit, foreign=foreign, generation=generation
        )
        try:
            drafts = [_draft(facts, share, variants, count) for share in shares]
        except FitError as problem:
            if count == counts[-1]:
                raise
            too_small = too_small or str(problem)
            continue
        why["instances"] = instances.explain_count(facts.machine, settings, count, too_small)
        for draft in drafts:
            draft.why.update(of_variants if draft.share.kit else {})
        for draft, name in ((one, name) for one in drafts for name in ("worker_cpus", "cores_per_worker")):
            given = {"worker_cpus": "workers"}.get(name, name)
            if given in tuned.chosen and getattr(facts.settings, given) is None:
                draft.why[name] = tuned.explain()
        return _Decided(settings=settings, libraries=libraries, variants=variants, drafts=drafts, why=why)
    raise AssertionError("there is always one instance to try")


def _draft(facts: Facts, share: instances.Share, variants: Mapping[str, str], count: int) -> _Draft:
    topology, why = share.topology, dict[str, str]()
    java, settings = resources.plan_java(topology, why), share.settings
    if share.kit:
        needed = {f"{one.name} {variants[one.name]}": resources.need_mib(one, variants[one.name]) for one in facts.kit}
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
            f"memory of a worker is an estimate: {resources.FOREIGN_MIB} MiB + {resources.FOREIGN_COPIES} × the archive"
        )
        if settings != share.settings:
            why["worker_cpus"] = "minWorkers of the YAML in the archives: it beats config.properties"
    launch = choose_launch(
        topology, layout.chunks, why, counted=facts.package_set != DEFAULT_SET, pinning=settings.pinning
    )
    # Where nothing else keeps it off the others' CPUs.
    confined = launch.args is None and topology.owns_cpus
    if confined:
        why["server_cpus"] = "confined to this instance's share, as nothing pins its workers"
    return _Draft(
        share=share,
        layout=layout,
        launch=launch,
        java=java,
        server_cpus=topology.cpus_allowed if confined else None,
        why=why,
    )


def _make_job(facts: Facts, decided: _Decided) -> ProfileJob:
    """Its settings are nothing of what is chosen by the profile."""
    pinning, owns = facts.settings.pinning, facts.machine.owns_cpus
    args = None if not pinning else "" if owns else UNBOUND
    kit = [draft for draft in decided.drafts if draft.share.kit]
    cores = min((draft.layout.cores for draft in kit), default=1)
    launch = Launch(args=args, memory_nodes=())
    return ProfileJob(
        settings={
            "cpu_model": facts.machine.model_name,
            "slots": [list(cpus) for draft in kit for cpus in draft.worker_cpus],
            "threads": cores,
            "off": sorted(facts.settings.off),
            "environment": environment.plan_profile_environment(facts.kit, decided.libraries, cores, launch),
        },
        models={
            one.name: ModelJob(variant=decided.variants[one.name], batches=list_timed(one, facts.settings.mode))
            for one in facts.kit
        },
    )


def _plan_instance(
    facts: Facts, decided: _Decided, draft: _Draft, profile: BatchProfile, tuned: Tuned
) -> InstancePlan:
    share, layout, launch, java, why = draft.share, draft.layout, draft.launch, draft.java, draft.why
    folder = Path(facts.run_dir, INSTANCES_FOLDER, share.name)
    kit: Sequence[ModelDefinition] = facts.kit if share.kit else ()
    workers, store = len(layout.chunks), facts.model_store
    if share.kit:
        plans, queue = models.plan_models(
            kit, decided.variants, profile, tuned, facts.settings,
            workers=workers, cores=layout.cores, bodies_mib=java.bodies_mib, why=why,
        )  # fmt: skip
        backends = {one.backend for one in plans.values()}
        why["properties.ipex_enable"] = "on where ipex computes a model; the handler does it"
    else:
        plans, queue = models.plan_foreign(
            facts.foreign, facts.settings, workers=workers, bodies_mib=java.bodies_mib, why=why
        )
        backends = {find_backend(facts, name) for name in facts.foreign}
        store = str(folder / STORE_FOLDER)
        why["properties.ipex_enable"] = (
            "ipex is this environment's backend; TorchServe's BaseHandler applies ipex.optimize to eager models only, "
            "and it does nothing for TorchScript"
        )
    return InstancePlan(
        port=share.port,
        kit=share.kit,
        models=plans,
        cpus=share.topology.cpus_allowed,
        memory_mib=share.topology.memory_limit_mib,
        cores_per_worker=layout.cores,
        worker_cpus=draft.worker_cpus,
        memory_nodes=launch.memory_nodes,
        server_cpus=draft.server_cpus,
        launched=launch.args is not None,
        pinned=launch.bound,
        queue_size=queue,
        java=java,
        environment=environment.plan_environment(kit, plans, decided.libraries, layout.cores, launch, why),
        worker_environment=environment.plan_worker_environment(
            decided.libraries, layout.cores, launch, backends, kit=share.kit
        ),
        properties=environment.plan_properties(
            share.topology, decided.libraries, launch, plans, backends, store=store, folder=folder,
            port=share.port, workers=workers, queue=queue, kit=share.kit,
        ),
    )  # fmt: skip
