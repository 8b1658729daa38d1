"""The kit under test: planned with arguments of its own in a place of its own, and started as make does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.__main__ import USAGE_ERROR
from config.plan import PLAN_FILE, Plan, read_plan
from loadtest.errors import LoadTestError, RefusedError
from loadtest.systems.fleet import Member, Site
from loadtest.systems.system import ROOT, System, make_kit_system
from loadtest.systems.variants import vary_archive
from server.processes import find_marked
from server.rundir import RunDir
from server.state import read_failure, read_state
from server.stop import stop

START_SECONDS = 1200
"""A rung of the ladder compiles the model while its workers start (config/rules/batching.py)."""
_FILLED = {"fp32": 8, "bf16": 16, "int8": 16}
SATURATING = {"resnet50": _FILLED, "densenet121": _FILLED, "bert": {**_FILLED, "int8": 24}}
"""Requests in a batch, by model and precision: a third of a second of a core."""
FILLING_MS = "20"
"""Long enough to fill a batch from a few dozen clients."""


def saturate(model: str, precision: str) -> tuple[str, ...]:
    """Arguments for what is compared in closed loops: the default plan goes by a latency limit instead."""
    return ("--batch", str(SATURATING[model][precision]), "--delay-ms", FILLING_MS)


def kit(
    name: str,
    model: str,
    arguments: Sequence[str],
    *,
    archive: Mapping[str, Any] | None = None,
    instances: int | None = 1,
) -> Member:
    """A kit server with `arguments` of `python -m config`, verified by its start; RefusedError with the
    kit's own reason when it cannot be served so.

    `model` may name several, with blanks between. `archive` has other values for the definition's `model`,
    which make a variant of it. `instances` is None for as many as the plan has by itself.
    """

    @contextlib.contextmanager
    def start(site: Site) -> Iterator[System]:
        site.say(f"  starting {name}")
        folder, port = site.place("kit")
        where = site.store
        if archive:
            source, where = where / f"{model}.mar", folder.with_name(f"{folder.name}-store")
            vary_archive(source, where, model=dict(archive))
        asked = [*arguments, "--model-store", str(where)]
        run, how = RunDir.at(folder), [*arguments, *([f"archive with {dict(archive)}"] if archive else [])]
        plan = write_plan(folder, port=port, model=model, arguments=asked, instances=instances)
        system = make_kit_system(name, run, plan, how=" ".join(how))
        try:
            _start(run)
            yield replace(system, start=read_start(system))
        finally:
            system.resume()
            stop(run)

    return Member(name=name, open=start)


def read_start(system: System) -> dict[str, float]:
    """`worker_seconds`: from the birth of the first worker's process, or its launcher's, to the last right
    smoke request."""
    assert system.run is not None
    state, processes = read_state(system.run.state), find_marked(system.run.path)
    workers = [one.start_ticks for one in processes if one.is_worker or one.is_launcher]
    if state is None or state.seconds_to_ready is None or not workers:
        raise LoadTestError(f"{system.name}: its server.json does not say how long the start took")
    born = (min(workers) - min(one.start_ticks for one in processes)) / os.sysconf("SC_CLK_TCK")
    return {"worker_seconds": state.seconds_to_ready - born}


def _start(run: RunDir) -> None:
    try:
        _call(["server", "start", "--run-dir", str(run.path)])
    except LoadTestError as problem:
        failure = read_failure(run.failure)
        if failure is None:
            raise
        where_it_failed = f"{failure.step}: " if failure.step else ""
        raise RefusedError(str(problem), where_it_failed + failure.cause) from problem


def write_plan(
    folder: Path, *, port: int, model: str, arguments: Sequence[str], instances: int | None = 1
) -> Plan:
    """Plan into a run directory, and start nothing."""
    asked = [*(["--instances", str(instances)] if instances else []), *arguments]
    _call(["config", "--models", model, "--port", str(port), "--run-dir", str(folder), *asked])
    return read_plan(folder / PLAN_FILE)


def _call(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    if done.returncode == 0:
        return
    message = f"python -m {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    if arguments[0] == "config" and done.returncode == USAGE_ERROR:
        raise RefusedError(message, done.stderr.strip().removeprefix("config: "))
    raise LoadTestError(message)
