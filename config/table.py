"""The dry run: the plan as a table for a person, one setting after the other with its value and why."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from config.files import render_id_list
from config.plan import InstancePlan, Plan, Setting

WIDTH = 108
INDENT = "      "


def render_table(plan: Plan) -> str:
    """Machine first, then each decision."""
    lines = _describe_machine(plan.machine) + _describe_instances(plan.instances)
    for title, settings in _groups(plan):
        lines += ["", title]
        width = max(map(len, settings), default=0)
        for name, setting in settings.items():
            lines.append(f"  {name:<{width}}  {_show(setting.value)}")
            lines += textwrap.wrap(
                setting.reason, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
            )
    return "\n".join(lines) + "\n"


def _groups(plan: Plan) -> Iterator[tuple[str, Mapping[str, Setting]]]:
    if plan.door:
        yield "DOOR", plan.door
    yield "LAYOUT", vars(plan.layout)
    yield "LIBRARIES", vars(plan.libraries)
    for name, model in sorted(plan.models.items()):
        settings = {key: value for key, value in vars(model).items() if key != "limits"}
        yield f"MODEL {name}", {**settings, **model.limits}
    yield "JAVA", vars(plan.java)
    yield "ENVIRONMENT of TorchServe", dict(sorted(plan.environment.items()))
    yield "ENVIRONMENT of the workers besides", dict(sorted(plan.worker_environment.items()))


def _describe_machine(machine: Mapping[str, Any]) -> list[str]:
    cpus = machine["cpus_allowed"]
    quota = "none" if machine["quota_cpus"] is None else f"{machine['quota_cpus']:g} CPUs"
    return [
        "MACHINE",
        f"  {machine['model_name']} ({machine['vendor']}): {' '.join(machine['flags']) or 'no AVX2'}",
        f"  CPUs this process may use: {render_id_list(cpus)} ({len(cpus)} of {machine['cpu_total']})",
        f"  physical cores {len(machine['cores'])}, usable {machine['usable_cores']} (quota: {quota}), "
        f"sockets {machine['sockets']}, NUMA nodes {render_id_list(machine['nodes'])}",
        f"  memory {machine['memory_limit_mib']} MiB ({machine['memory_source']})",
    ]


def _describe_instances(instances: Mapping[str, InstancePlan]) -> list[str]:
    lines = [
        f"  {name}  port {one.port} · CPUs {render_id_list(one.cpus)} · {one.workers} workers of each of "
        f"{', '.join(one.models)}"
        for name, one in instances.items()
    ]
    return ["", "INSTANCES behind the door", *lines] if lines else []


def _show(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
