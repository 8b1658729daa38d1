"""The plan of the whole, put together from its instances' plans: what a person and the load tests go by.

It is no TorchServe's: what only one of them can have (its own ports, its CPUs' arguments) is left to its own
plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from config.plan import Inputs, InstancePlan, Java, Layout, ModelPlan, Plan, Setting, Settings
from config.rules import reasons
from config.rules.instances import Share
from config.rules.network import plan_proxy_addresses
from config.topology import Topology

OPTIONS = "CPU_KIT_OPTIONS"
"""One JSON object for all models, so that of several instances is merged by model."""

OF_INSTANCES_ALONE = (
    *("grpc_inference_address", "grpc_inference_port", "grpc_management_address", "grpc_management_port"),
    *("management_address", "initial_worker_port", "cpu_launcher_args"),
)

Plans = Mapping[str, Plan]


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
        instances={share.name: _describe(share, plans[share.name]) for share in shares},
    )


def _describe(share: Share, plan: Plan) -> InstancePlan:
    return InstancePlan(
        port=share.port,
        models=share.models,
        cpus=share.topology.cpus_allowed,
        workers=plan.layout.workers_per_model.value,
    )


def _merge_layout(topology: Topology, shares: Sequence[Share], plans: Plans, why: str) -> Layout:
    workers = {name: _count_workers(name, plans) for name in _list_models(plans)}
    cpus = ", ".join(f"{share.name} {share.describe_cpus()}" for share in shares)
    cores = _read(plans, lambda plan: plan.layout.cores_per_worker)
    return Layout(
        workers_per_model=Setting(value=max(workers.values()), reason=f"{why}: {_list_workers(plans)}"),
        cores_per_worker=Setting(
            value=min(setting.value for setting in cores.values()), reason=_join_reasons(cores)
        ),
        core_list=Setting(
            value=sorted({cpu for plan in plans.values() for cpu in plan.layout.core_list.value}),
            reason=f"{_explain_list(topology, plans)}; of the instances: {cpus}",
        ),
        worker_cpus=_concatenate(plans, lambda plan: plan.layout.worker_cpus),
        memory_nodes=_concatenate(plans, lambda plan: plan.layout.memory_nodes),
        server_cpus=_merge_server_cpus(plans),
    )


def _explain_list(topology: Topology, plans: Plans) -> str:
    if any(plan.pinned for plan in plans.values()):
        return reasons.explain_list(topology)
    return _join_reasons(_read(plans, lambda plan: plan.layout.core_list))


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


def _list_models(plans: Plans) -> list[str]:
    return sorted({name for plan in plans.values() for name in plan.models})


def _count_workers(model: str, plans: Plans) -> int:
    return sum(plan.models[model].workers.value for plan in plans.values() if model in plan.models)


def _list_workers(plans: Plans) -> str:
    return ", ".join(f"{name} {plan.layout.workers_per_model.value}" for name, plan in plans.items())
