"""Writes what was planned, the whole and each instance into a folder of its own, or prints it."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from config.door import DoorFiles, render_door
from config.files import render_id_list
from config.folders import claim_run_folder, hold_lock, write_text_atomically
from config.plan import (
    ENVIRONMENT_FILE,
    HAPROXY_FILE,
    INSTANCES_FOLDER,
    NEXT_FOLDER,
    PLAN_FILE,
    PROPERTIES_FILE,
    InstancePlan,
    ModelPlan,
    Plan,
    Setting,
    write_plan,
)
from config.render import render_environment, render_properties
from config.rules.site import Site
from handlers.backends.catalogue import DEFAULT, name_variant

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


def write_site(site: Site, run_dir: Path) -> None:
    """All files that servers start from; a start that is under way, of any of them, keeps its own.

    Folders of instances that are no longer planned are left: only `server` can tell whether one runs.
    """
    folders = {name: run_dir / INSTANCES_FOLDER / name for name in site.instances}
    with _claim([run_dir, *folders.values()]):
        for name, folder in folders.items():
            _write_server(site.instances[name], folder)
        _write_door(site.plan, run_dir, run_dir)


def write_next(site: Site, run_dir: Path) -> None:
    """For a reload: the instances' own files, and the door's and the whole plan where it moves to later."""
    folders = {name: run_dir / INSTANCES_FOLDER / name for name in site.instances}
    with _claim(list(folders.values())):
        for name, folder in folders.items():
            _write_server(site.instances[name], folder)
    (run_dir / NEXT_FOLDER).mkdir(mode=0o700, exist_ok=True)
    _write_door(site.plan, run_dir, run_dir / NEXT_FOLDER)


def render_site(site: Site, run_dir: Path) -> str:
    """What would be written, for a person: the whole, and then the door and each TorchServe."""
    parts = [render_table(site.plan), render_door(site.plan, DoorFiles.of(run_dir.resolve()))]
    for name, plan in site.instances.items():
        parts += [f"\nINSTANCE {name}\n", render_table(plan), render_properties(plan)]
    return "\n".join(parts)


def summarize(site: Site) -> str:
    """The one line that planning ends with."""
    plan = site.plan
    unpinned = [one.layout.worker_cpus.reason for one in site.instances.values() if not one.pinned]
    count, tls = len(plan.instances), " with TLS" if plan.inputs.tls_cert else ""
    parts = [
        f"planned: {', '.join(plan.models)}",
        _render_workers(plan),
        *(f"NOT PINNED: {reason}" for reason in unpinned[:1]),
        _render_variants(plan),
        str(plan.libraries.allocator.value),
        f"{plan.libraries.openmp.value} OpenMP",
        f"{count} instance{'s' * (count > 1)} behind HAProxy on port {plan.inputs.port}{tls}",
    ]
    return " · ".join(parts)


@contextlib.contextmanager
def _claim(folders: list[Path]) -> Iterator[None]:
    """All of them, or nothing is written."""
    with contextlib.ExitStack() as held:
        for folder in folders:
            claim_run_folder(folder)
            held.enter_context(hold_lock(folder))
        yield


def _write_server(plan: Plan, folder: Path) -> None:
    """The three files that a TorchServe starts from."""
    write_text_atomically(folder / PROPERTIES_FILE, render_properties(plan))
    write_text_atomically(folder / ENVIRONMENT_FILE, render_environment(plan))
    write_plan(plan, folder / PLAN_FILE)


def _write_door(plan: Plan, run_dir: Path, folder: Path) -> None:
    """The plan last: it is what a start goes by."""
    write_text_atomically(folder / HAPROXY_FILE, render_door(plan, DoorFiles.of(run_dir.resolve())))
    write_plan(plan, folder / PLAN_FILE)


def _render_workers(plan: Plan) -> str:
    """Of each model where they have not the same number."""
    each = {name: model.workers.value for name, model in sorted(plan.models.items())}
    workers = str(plan.layout.workers_per_model.value)
    if len(set(each.values())) > 1:
        workers = ", ".join(f"{name} {number}" for name, number in each.items())
    return f"workers {workers} × cores {plan.layout.cores_per_worker.value}"


def _render_variants(plan: Plan) -> str:
    """Of each model where they are not computed alike."""
    named = {name: name_computing(one) for name, one in sorted(plan.models.items())}
    if len(set(named.values())) == 1:
        return next(iter(named.values()))
    return ", ".join(f"{name} {computing}" for name, computing in named.items())


def name_computing(model: ModelPlan) -> str:
    """Its precision, with its backend where that is not the default."""
    backend, precision = str(model.backend.value), str(model.precision.value)
    return precision if backend == DEFAULT else name_variant(backend, precision)
