"""Writes what was planned: the whole into the run directory, each instance into a folder of its own in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from config.atomic import write_text_atomically
from config.door import DoorFiles, render_door
from config.folders import claim_run_folder, hold_lock
from config.plan import (
    ENVIRONMENT_FILE,
    HAPROXY_FILE,
    INSTANCES_FOLDER,
    NEXT_FOLDER,
    PLAN_FILE,
    PROPERTIES_FILE,
    ModelPlan,
    Plan,
    write_plan,
)
from config.render import render_environment, render_properties
from config.rules.site import Site
from config.table import render_table
from handlers.engines import DEFAULT, name_variant


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
    parts = [
        f"planned: {', '.join(plan.models)}",
        _render_workers(plan),
        *_list_unpinned(site),
        _render_variants(plan),
        str(plan.libraries.allocator.value),
        f"{plan.libraries.openmp.value} OpenMP",
        _render_door_line(plan),
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


def _list_unpinned(site: Site) -> list[str]:
    """Nothing where the workers are pinned; else that they are not, and why."""
    reasons = [plan.layout.worker_cpus.reason for plan in site.instances.values() if not plan.pinned]
    return [f"NOT PINNED: {reason}" for reason in reasons[:1]]


def _render_variants(plan: Plan) -> str:
    """Of each model where they are not computed alike."""
    named = {name: name_computing(one) for name, one in sorted(plan.models.items())}
    if len(set(named.values())) == 1:
        return next(iter(named.values()))
    return ", ".join(f"{name} {computing}" for name, computing in named.items())


def name_computing(model: ModelPlan) -> str:
    """Its precision, with its engine where that is not the default."""
    engine, precision = str(model.engine.value), str(model.precision.value)
    return precision if engine == DEFAULT else name_variant(engine, precision)


def _render_door_line(plan: Plan) -> str:
    count = len(plan.instances)
    tls = " with TLS" if plan.inputs.tls_cert else ""
    return f"{count} instance{'s' * (count > 1)} behind HAProxy on port {plan.inputs.port}{tls}"
