"""A tune experiment that is really run and kept, against live servers in virtual time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drivers.outcome import Outcome as Rows
from loadtest.drivers.records import make_records
from loadtest.experiments.tune.candidate import DEFAULT, Candidate
from loadtest.experiments.tune.experiment import KIND, Course, make_experiment
from loadtest.experiments.tune.space import read_space
from loadtest.experiments.tune.windows import TURN_EXTRA_S, WARM_UP_S, Windows
from loadtest.results.kept import Kept, keep_block, start_result
from loadtest.results.trial import CpuUse, KeptBlock
from loadtest.scenarios.scenario import AUTO
from loadtest.simulation.search import find_capacity
from loadtest.simulation.service import Overhead
from loadtest.systems.fleet import Member
from loadtest.systems.system import System
from loadtest.trials.block import Block, Turn
from loadtest.trials.trial import Load, make_trial
from tests.loadtest.experiments.tune.live import Machine, make_times, plan
from tests.loadtest.making import ANSWER, GOOD, HOST, QUIET, make_facts
from tests.loadtest.making import make_trial as make_plain_trial
from tests.loadtest.simulated import EXPECTED

MODEL = "resnet50"
LIVE = Overhead(pace=1.05, per_batch_s=0.0006, per_request_s=0.0001, outside_s=0.002)
"""What a real server adds."""
Change = Callable[[KeptBlock], KeptBlock]


def make_profile(workers: int, cores: int, scale: float = 1.0) -> dict[str, Any]:
    service = {str(batch): {"samples_s": list(each)} for batch, each in make_times(scale).samples}
    return {"workers": workers, "cores_per_worker": cores, "service": service}


def make_asked(default: Candidate, **changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL, "engine": "ipex", "precision": "int8", "limit": {"percentile": 99.0, "ms": 200.0},
        "budget_minutes": 15.0, "payloads": "photos", "arguments": [],
        "default": dataclasses.asdict(default), "queue": 100, "instances": 0,
        "batches": [2, 4, 8],
        "profiles": [make_profile(2, 1)],
        "archive": {"id": "abc", "weights": "random", "notes": []}, "host": HOST, **changes,
    }  # fmt: skip


ONLY_LIVE_LATER_MS = 15.0
"""One request alone takes 13.5 ms of a core, and a live server 2.6 more."""


def ask_for_both_cores(limit_ms: float) -> dict[str, Any]:
    """A limit that one worker of both cores keeps, and two of one do not."""
    profiles = [make_profile(2, 1), make_profile(1, 2, 0.5)]
    return {"limit": {"percentile": 99.0, "ms": limit_ms}, "batches": [1, 2, 4], "profiles": profiles}


def halve_both_cores(name: str) -> float:
    """The truth of these profiles."""
    return 0.5 if name.startswith("w1x2") else 1.0


def open_nothing(_: object) -> contextlib.AbstractContextManager[System]:
    raise AssertionError("a plan brings nothing up")


def make_course(
    default: Candidate, *, minutes: float = 15.0, memory_mib: float = 9000.0, **changes: Any
) -> Course:
    space = read_space(make_asked(default, **changes))
    return Course(
        windows=Windows(model=MODEL, payloads="photos", limit=space.limit),
        space=space,
        budget_s=60 * minutes,
        memory_mib=memory_mib,
        make_member=lambda name, _: Member(name=name, open=open_nothing),
        libraries=("jemalloc", "intel"),
    )


def run_tune(
    folder: Path,
    *,
    default: Candidate | None = None,
    truth: Callable[[str], float] = lambda _: 1.0,
    change: Change = lambda block: block,
    blocks: int = 99,
    kept: Kept | None = None,
    asked: Mapping[str, Any] | None = None,
    **how: Any,
) -> Kept:
    """All blocks, or so many; `truth` makes a plan's live times longer than its profile by this factor.

    `change` may spoil a block before it is kept; `asked` is other than make_asked has it.
    """
    default, asked = default or plan(16, 20), asked or {}
    course = make_course(default, **how, **asked)
    experiment = make_experiment(course, make_asked(default, **asked))
    kept = kept or start_result(KIND, experiment.name, experiment.asked, folder, HOST)
    for _ in range(blocks):
        block = experiment.next_block(kept)
        if block is None:
            break
        measured, records = measure_block(block, default, truth, number=len(kept.blocks))
        kept = keep_block(kept, change(measured), records)
    return kept


def measure_block(
    block: Block, default: Candidate, truth: Callable[[str], float], *, number: int, drift: float = 0.04
) -> tuple[KeptBlock, list[Any]]:
    """In virtual time; `start` without drift, so that its fit is made once for all tests."""
    names = dict.fromkeys(turn.member.name for turn in block.turns)
    servers = {
        name: (default if name == DEFAULT else Candidate.parse(name), make_times(truth(name), LIVE))
        for name in names
    }
    machine = Machine(servers=servers, seed=number, drift=0.0 if block.name == "start" else drift)
    pairs = [
        measure_turn(machine, turn, block, repeat) for repeat in range(block.repeats) for turn in block.turns
    ]
    seconds = sum(trial.duration_s + WARM_UP_S + TURN_EXTRA_S for trial, _ in pairs)
    kept = KeptBlock(
        number=0, name=block.name, began="2026-01-02T03:04:05+00:00", seconds=seconds, generated_here=True,
        systems={name: make_facts(name, models=(MODEL,), verify_after=GOOD) for name in names},
        trials=tuple(trial for trial, _ in pairs),
    )  # fmt: skip
    return kept, [rows for _, rows in pairs]


def measure_turn(machine: Machine, turn: Turn, block: Block, repeat: int) -> tuple[Any, Any]:
    name, scenario = turn.member.name, turn.scenario
    if turn.level == AUTO:
        one, times = machine.servers[name]
        rate = find_capacity(one.simulate_as(100), times)
        trial = make_plain_trial(
            name, rate, scenario=scenario, level=64.0, cpu=take_cpu(rate, 1 / rate, one.batch)
        )
        return trial, make_records([(0, float("nan"), 0.0, 0.1, 200, 0, "")], [ANSWER])
    rate = float(turn.level)
    arrivals = f"{block.name} {repeat}"
    requests = int(rate * scenario.duration_s) + 50
    found = machine.serve(name, rate, arrivals=arrivals, warm_up=int(rate), requests=requests)
    due = found.arrivals - scenario.warm_up_s
    status = np.where(np.isinf(found.ended), 503, 200)
    ended = np.where(np.isinf(found.ended), found.arrivals, found.ended) - scenario.warm_up_s
    rows = [
        (0, at, at, end, code, 0, "")
        for at, end, code in zip(due.tolist(), ended.tolist(), status.tolist(), strict=True)
    ]
    records = make_records(rows, [ANSWER])
    load = Load(
        system=System(name=name, models=()), scenario=scenario, level=rate, payloads=(), expected=EXPECTED
    )
    outcome = Rows(records=records, wall_zero=0.0, cpu_shares=(0.1,))
    trial = make_trial(load, outcome, repeat=repeat, duration_s=scenario.duration_s)
    each = found.worker_s / np.isfinite(found.ended).sum()
    one, _ = machine.servers[name]
    cpu = take_cpu(trial.rate, float(one.cores_per_worker * each), one.batch)
    return dataclasses.replace(trial, cpu=cpu), records


def take_cpu(rate: float, worker_s: float, batch: int) -> CpuUse:
    """Seconds for a request, in full batches."""
    each = {"worker": worker_s, "TorchServe": LIVE.others_s(batch) / batch}
    used = {role: seconds * rate * QUIET.seconds for role, seconds in each.items()}
    return dataclasses.replace(QUIET, by_role=used)
