"""Everything that runs on one machine: HAProxy, and instances of TorchServe behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from config.definitions import ModelDefinition
from config.errors import ConfigError, FitError
from config.installed import Installed
from config.plan import (
    INSTANCES_FOLDER,
    Inputs,
    InstancePlan,
    Java,
    Layout,
    ModelPlan,
    Plan,
    Setting,
    Settings,
)
from config.rules import choose, plan_instance
from config.rules.door import plan_door
from config.rules.instances import Share, count_door_mib, explain_count, list_counts, plan_shares
from config.rules.layout import check_sizes, explain_list
from config.rules.network import plan_proxy_addresses
from config.rules.timing import plan_timing_job
from config.rules.variants import Chosen
from config.timings import NO_TIMINGS, NOT_TIMED, Timed, TimingJob, Timings
from config.topology import Topology
from config.tuned import NOT_TUNED, Tuned

OPTIONS = "CPU_KIT_OPTIONS"
"""One JSON object for all models, so that of several instances is merged by model."""

OF_INSTANCES_ALONE = (
    *("grpc_inference_address", "grpc_inference_port", "grpc_management_address", "grpc_management_port"),
    *("management_address", "initial_worker_port", "cpu_launcher_args"),
)

Plans = Mapping[str, Plan]

OF_THE_WHOLE = ("bind", "token_file", "instances", "deadline_ms", "tls_cert", "tls_key", "generation")
"""Inputs that are none of an instance's own."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The plans of one machine."""

    plan: Plan
    """Of the whole."""
    instances: Mapping[str, Plan]
    """Of each instance, by name."""


def make_site(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    timings: Timings = NO_TIMINGS,
    tuned: Tuned = NOT_TUNED,
) -> Site:
    """Everything decided; raises ConfigError where something asked for cannot be."""
    tuned = tuned.leave_to(inputs)
    filled = tuned.fill(inputs)
    job = _plan_job(topology, models, filled, installed, tuned) if timings.raw else None
    site = _plan_site(topology, models, filled, installed, timings.select(job), tuned)
    return replace(site, plan=replace(site.plan, inputs=inputs))


def make_timing_job(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    tuned: Tuned = NOT_TUNED,
) -> TimingJob:
    """What such a site goes by, in the places of its workers."""
    tuned = tuned.leave_to(inputs)
    return _plan_job(topology, models, tuned.fill(inputs), installed, tuned)


def _plan_job(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    tuned: Tuned,
) -> TimingJob:
    plan = _plan_site(topology, models, inputs, installed, NOT_TIMED, tuned).plan
    return plan_timing_job(topology, models, inputs, plan)


def _plan_site(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    timed: Timed,
    tuned: Tuned,
) -> Site:
    chosen = choose(topology, models, inputs, installed, timed, tuned)
    if installed.haproxy is None and inputs.topology == "live":
        raise ConfigError("haproxy is not on this machine: run `make setup`")
    check_sizes(inputs, topology)
    shares, plans, why = _plan_instances(topology, models, inputs, chosen)
    door_mib = count_door_mib(topology)
    whole = merge_plans(topology, inputs, shares, plans, why)
    return Site(plan=replace(whole, door=plan_door(inputs, plans, door_mib)), instances=plans)


def _plan_instances(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, chosen: Chosen
) -> tuple[Sequence[Share], dict[str, Plan], str]:
    """As many as fit of what would be best; and why so many."""
    too_small = ""
    counts = list_counts(topology, inputs)
    for count in counts:
        shares = plan_shares(topology, inputs, [model.name for model in models], count)
        try:
            plans = {share.name: _plan_instance(share, models, inputs, chosen, count) for share in shares}
        except FitError as problem:
            if count == counts[-1]:
                raise
            too_small = too_small or f" ({problem})"
            continue
        return shares, plans, explain_count(topology, inputs, count) + too_small
    raise AssertionError("there is always one instance to try")


def _plan_instance(
    share: Share, models: Sequence[ModelDefinition], inputs: Inputs, chosen: Chosen, count: int
) -> Plan:
    served = [model for model in models if model.name in share.models]
    try:
        return plan_instance(share, served, _hand_down(inputs, share), chosen)
    except FitError as problem:
        of = f"instance {share.name} of {count}, with CPUs {share.describe_cpus()}"
        cure = "; fewer instances have more each: INSTANCES=1" if count > 1 else ""
        raise FitError(f"{problem} ({of}{cure})") from problem


def _hand_down(inputs: Inputs, share: Share) -> Inputs:
    """What an instance was asked for."""
    return replace(
        inputs,
        models=share.models,
        workers=share.workers,
        port=share.port,
        run_dir=f"{inputs.run_dir}/{INSTANCES_FOLDER}/{share.name}",
        **{name: getattr(Inputs, name) for name in OF_THE_WHOLE},
    )


def merge_plans(topology: Topology, inputs: Inputs, shares: Sequence[Share], plans: Plans, why: str) -> Plan:
    """By name of instance, in their order; `why` there are so many of them."""
    first = next(iter(plans.values()))
    return Plan(
        inputs=inputs,
        machine=topology.to_dict(),
        layout=_merge_layout(topology, shares, plans, why),
        libraries=first.libraries,
        environment=_merge_environment(plans),
        worker_environment=_merge_settings({name: plan.worker_environment for name, plan in plans.items()}),
        properties=_merge_properties(inputs, plans),
        java=_merge_java(plans),
        models={name: _merge_model(name, plans) for name in inputs.models},
        timings=first.timings,
        instances={
            share.name: InstancePlan(
                port=share.port,
                models=share.models,
                cpus=share.topology.cpus_allowed,
                workers=plans[share.name].layout.workers_per_model.value,
            )
            for share in shares
        },
    )


def _merge_layout(topology: Topology, shares: Sequence[Share], plans: Plans, why: str) -> Layout:
    workers = {name: plan.layout.workers_per_model.value for name, plan in plans.items()}
    served = {name for plan in plans.values() for name in plan.models}
    most = max(
        sum(plan.models[name].workers.value for plan in plans.values() if name in plan.models)
        for name in served
    )
    pinned = any(plan.pinned for plan in plans.values())
    listed = _join_reasons(_read(plans, lambda plan: plan.layout.core_list))
    cpus = ", ".join(f"{share.name} {share.describe_cpus()}" for share in shares)
    cores = _read(plans, lambda plan: plan.layout.cores_per_worker)
    return Layout(
        workers_per_model=Setting(
            value=most, reason=f"{why}: {', '.join(f'{name} {count}' for name, count in workers.items())}"
        ),
        cores_per_worker=Setting(
            value=min(setting.value for setting in cores.values()), reason=_join_reasons(cores)
        ),
        core_list=Setting(
            value=sorted({cpu for plan in plans.values() for cpu in plan.layout.core_list.value}),
            reason=f"{explain_list(topology) if pinned else listed}; of the instances: {cpus}",
        ),
        worker_cpus=_concatenate(plans, lambda plan: plan.layout.worker_cpus),
        memory_nodes=_concatenate(plans, lambda plan: plan.layout.memory_nodes),
        server_cpus=_merge_server_cpus(plans),
    )


def _merge_server_cpus(plans: Plans) -> Setting:
    """What the door and the supervisor are confined to: nothing, or all that the instances are."""
    settings = _read(plans, lambda plan: plan.layout.server_cpus)
    lists = [setting.value for setting in settings.values()]
    everywhere = any(value is None for value in lists)
    together = None if everywhere else sorted({cpu for value in lists for cpu in value})
    return Setting(value=together, reason=_join_reasons(settings))


def _concatenate(plans: Plans, read: Callable[[Plan], Setting]) -> Setting:
    """Instance by instance, the ranks of each."""
    settings = _read(plans, read)
    return Setting(
        value=[one for setting in settings.values() for one in setting.value],
        reason=f"instance by instance, {', '.join(plans)}: {_join_reasons(settings)}",
    )


def _merge_model(name: str, plans: Plans) -> ModelPlan:
    """Alike in all instances but for numbers of it there are in each."""
    own = {key: plan.models[name] for key, plan in plans.items() if name in plan.models}
    first = next(iter(own.values()))
    workers = _add({key: model.workers for key, model in own.items()})
    queue = _add({key: model.queue_size for key, model in own.items()})
    return replace(first, workers=workers, queue_size=queue)


def _merge_java(plans: Plans) -> Java:
    """Memory is of all together, the flags are one's."""
    sums = {
        field.name: _add({name: getattr(plan.java, field.name) for name, plan in plans.items()})
        for field in fields(Java)
        if field.name != "vmargs"
    }
    return Java(**sums, vmargs=_merge_one({name: plan.java.vmargs for name, plan in plans.items()}))


def _merge_environment(plans: Plans) -> dict[str, Setting]:
    """The handlers' options are those of every model, by its first instance."""
    merged = _merge_settings({name: plan.environment for name, plan in plans.items()})
    options: dict[str, Any] = {}
    for plan in plans.values():
        options = {**json.loads(plan.environment[OPTIONS].value), **options}
    text = json.dumps(options, sort_keys=True, separators=(",", ":"))
    return {**merged, OPTIONS: replace(merged[OPTIONS], value=text)}


def _merge_properties(inputs: Inputs, plans: Plans) -> dict[str, Setting]:
    """What is asked of the whole is asked of HAProxy."""
    merged = _merge_settings({name: plan.properties for name, plan in plans.items()})
    for name in OF_INSTANCES_ALONE:
        merged.pop(name, None)
    return {**merged, **plan_proxy_addresses(inputs)}


def _merge_settings(settings: Mapping[str, Settings]) -> dict[str, Setting]:
    """By key; an instance need not have each."""
    keys = dict.fromkeys(key for own in settings.values() for key in own)
    return {key: _merge_one({name: own[key] for name, own in settings.items() if key in own}) for key in keys}


def _merge_one(settings: Mapping[str, Setting]) -> Setting:
    """The first instance's, which says so where it is not that of all."""
    name, first = next(iter(settings.items()))
    if all(setting.value == first.value for setting in settings.values()):
        return first
    return replace(first, reason=f"of {name}, each instance has its own: {first.reason}")


def _add(settings: Mapping[str, Setting]) -> Setting:
    values = {name: setting.value for name, setting in settings.items()}
    each = ", ".join(f"{name} {value}" for name, value in values.items())
    return Setting(value=sum(values.values()), reason=f"{each}: {_join_reasons(settings)}")


def _read(plans: Plans, read: Callable[[Plan], Setting]) -> dict[str, Setting]:
    return {name: read(plan) for name, plan in plans.items()}


def _join_reasons(settings: Mapping[str, Setting]) -> str:
    """Once where they are the same."""
    by_reason: dict[str, list[str]] = {}
    for name, setting in settings.items():
        by_reason.setdefault(setting.reason, []).append(name)
    if len(by_reason) == 1:
        return next(iter(by_reason))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
