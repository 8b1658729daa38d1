"""The kit under test: planned with arguments of its own in a place of its own, and started as make does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from config.errors import ConfigError
from config.plan import Plan
from config.planning import NO_PROFILE, make_plan, read_facts, read_profile
from config.render import write_plan_files
from config.settings import read_settings
from loadtest.drivers import ROOT
from loadtest.errors import LoadTestError, RejectedError
from loadtest.servers.base import Running, Server, Testbed, make_running
from server.processes import find_marked
from server.rundir import RunDir
from server.state import read_failure, read_state
from server.stop import stop

START_SECONDS = 1200
"""A step of the ablation compiles the model while its workers start (config/rules/batching.py)."""
_FILLED = {"fp32": 8, "bf16": 16, "int8": 16}
SATURATING = {"resnet50": _FILLED, "densenet121": _FILLED, "bert": {**_FILLED, "int8": 24}}
"""Requests in a batch, by model and precision: a third of a second of a core."""
FILLING_MS = "20"
"""Long enough to fill a batch from a few dozen clients."""


def saturate(model: str, precision: str) -> tuple[str, ...]:
    """Settings for what is compared in closed loops: the default plan goes by a latency limit instead."""
    return (f"BATCH={SATURATING[model][precision]}", f"DELAY_MS={FILLING_MS}")


def kit_server(
    name: str,
    models: Sequence[str],
    arguments: Sequence[str],
    *,
    instances: int | None = 1,
    profile: str = "",
    memory_mib: int = 0,
    prepare: Callable[[Running], None] | None = None,
) -> Server:
    """A kit server with settings as NAME=VALUE, verified by its start; RejectedError with the kit's reason
    where it cannot be served.

    `instances` is None for as many as the plan has by itself, `profile` a file with the batch profile.
    """

    @contextlib.contextmanager
    def start(testbed: Testbed) -> Iterator[Running]:
        testbed.say(f"  starting {name}")
        folder, port = testbed.place("kit")
        given = [*arguments, f"MODEL_STORE={testbed.store}"]
        run = RunDir.at(folder)
        plan = write_plan(
            folder, port=port, models=models, arguments=given, instances=instances, profile=profile
        )
        running = make_running(name, run, plan, how=" ".join(["kit", *arguments]))
        try:
            _start(run)
            yield replace(running, start_s=read_start(running))
        finally:
            running.resume()
            stop(run)

    return Server(name=name, open=start, memory_mib=memory_mib, prepare=prepare)


def read_start(running: Running) -> float:
    """Seconds from the birth of the first worker's process, or its launcher's, to the last right smoke
    request."""
    assert running.run is not None
    state, processes = read_state(running.run.state), find_marked(running.run.path)
    workers = [one.start_ticks for one in processes if one.is_worker or one.is_launcher]
    if state is None or state.seconds_to_ready is None or not workers:
        raise LoadTestError(f"{running.name}: its server.json does not say how long the start took")
    born = (min(workers) - min(one.start_ticks for one in processes)) / os.sysconf("SC_CLK_TCK")
    return float(state.seconds_to_ready - born)


def _start(run: RunDir) -> None:
    try:
        _call(["server", "start", f"RUN_DIR={run.path}"])
    except LoadTestError as problem:
        failure = read_failure(run.failure)
        if failure is None:
            raise
        where_it_failed = f"{failure.step}: " if failure.step else ""
        raise RejectedError(str(problem), where_it_failed + failure.cause) from problem


def write_plan(
    folder: Path,
    *,
    port: int,
    models: Sequence[str],
    arguments: Sequence[str],
    instances: int | None = 1,
    profile: str = "",
) -> Plan:
    """Plan into a run directory, and start nothing; RejectedError for what cannot be planned. Environment and
    kit.toml do not count: what is compared is what is named."""
    known = [f"MODELS={' '.join(models)}", f"PORT={port}", f"RUN_DIR={folder}"]
    known += [f"INSTANCES={instances}"] if instances else []
    try:
        facts = read_facts(read_settings([*known, *arguments], ()))
        plan = make_plan(facts, profile=read_profile(profile) if profile else NO_PROFILE)
        write_plan_files(plan)
    except ConfigError as problem:
        raise RejectedError(f"no plan with {' '.join(arguments)}: {problem}", str(problem)) from problem
    return plan


def _call(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    if done.returncode == 0:
        return
    message = f"python -m {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    raise LoadTestError(message)
