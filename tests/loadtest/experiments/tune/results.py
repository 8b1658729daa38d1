"""A tune experiment that is really run and kept, against servers whose peaks are given."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drivers.job import Outcome as Rows
from loadtest.drivers.records import make_records
from loadtest.experiments.tune.candidate import DEFAULT, Candidate, list_candidates
from loadtest.experiments.tune.curve import Limit
from loadtest.experiments.tune.experiment import (
    KIND,
    TURN_EXTRA_S,
    WARM_UP_S,
    Course,
    Windows,
    make_experiment,
)
from loadtest.experiments.tune.outcome import name_plans
from loadtest.results.kept import Kept, keep_block, start_result
from loadtest.results.trial import KeptBlock
from loadtest.systems.fleet import Member
from loadtest.systems.system import System
from loadtest.trials.block import Block, Turn
from loadtest.trials.trial import Load, make_trial
from tests.loadtest.making import ANSWER, GOOD, HOST, QUIET, make_facts
from tests.loadtest.making import make_trial as make_plain_trial
from tests.loadtest.simulated import EXPECTED

MODEL = "resnet50"
MIX = {"bert": 0.3, MODEL: 0.7}
LIMIT = Limit(percentile=99.0, seconds=0.2)
DEFAULT_PEAK = 100.0
CLOSED = 1.4
"""A closed loop's rate to the peak."""
STEEPNESS, SPREAD, P99 = 8.0, 0.3, 2.326
SIZES = (1, 2, 4, 8, 16)
BEST = "w2x1-b4"
"""One step below the default's batch of 8."""
BOTH = dataclasses.replace(
    EXPECTED, answers=2 * EXPECTED.answers, fp32=2 * EXPECTED.fp32, tolerances=2 * EXPECTED.tolerances
)
"""Of a mix, one payload of each model."""
Change = Callable[[KeptBlock], KeptBlock]
Peaks = Callable[[str], float]


def find_best(name: str) -> float:
    """One plan is better than the default, all others are worse."""
    return {"default": 1.0, BEST: 1.5}.get(name.removesuffix("-gnu"), 0.8) * DEFAULT_PEAK


def make_default(models: tuple[str, ...] = (MODEL,)) -> Candidate:
    return Candidate(workers=2, cores_per_worker=1, batch=dict.fromkeys(models, 8))


def draw_latency(rate: float, peak: float, count: int, seed: int) -> np.ndarray:
    """Seconds whose p99 is the limit at the peak, on a machine that drifts by some percent."""
    random = np.random.default_rng(seed)
    slower = random.uniform(0.97, 1.03)
    scale = LIMIT.seconds * (slower * rate / peak) ** STEEPNESS
    return scale * np.exp(SPREAD * (random.standard_normal(count) - P99))


def open_nothing(_: object) -> contextlib.AbstractContextManager[System]:
    raise AssertionError("a plan brings nothing up")


def make_course(*, minutes: float = 30.0, memory_mib: float = 9000.0, shares: Mapping[str, float]) -> Course:
    models = tuple(shares) or (MODEL,)
    default = make_default(models)
    return Course(
        windows=Windows(model=" ".join(models), payloads="photos", limit=LIMIT),
        plans=name_plans(
            [default, *list_candidates(default, dict.fromkeys(models, SIZES), free_layout=True)]
        ),
        instances=1,
        budget_s=60 * minutes,
        memory_mib=memory_mib,
        make_member=lambda name, _: Member(name=name, open=open_nothing),
    )


def run_tune(
    folder: Path, *, peaks: Peaks = find_best, change: Change = lambda block: block, blocks: int = 99,
    kept: Kept | None = None, shares: Mapping[str, float] | None = None, seed: str = "", **how: Any,
) -> Kept:  # fmt: skip
    """All blocks, or so many; `change` may spoil a block before it is kept."""
    course = make_course(shares=shares or {}, **how)
    models = list(course.plans[DEFAULT].batch)
    asked = {
        "models": models,
        "shares": shares or {},
        "variants": dict.fromkeys(models, "ipex int8"),
        "limit": {"percentile": LIMIT.percentile, "ms": 1000 * LIMIT.seconds},
        "payload_models": models if shares else [],
        "candidates": [dataclasses.asdict(one) for one in course.plans.values()],
        "weights": dict.fromkeys(models, "random"),
    }
    experiment = make_experiment(course, asked)
    kept = kept or start_result(KIND, experiment.name, experiment.asked, folder, HOST)
    for _ in range(blocks):
        block = experiment.next_block(kept)
        if block is None:
            break
        measured, records = measure_block(block, peaks, models, seed=f"{seed} {len(kept.blocks)}")
        kept = keep_block(kept, change(measured), records)
    return kept


def measure_block(block: Block, peaks: Peaks, models: list[str], *, seed: str) -> tuple[KeptBlock, list[Any]]:
    pairs = [
        measure_turn(turn, peaks(turn.member.name), repeat, seed=zlib.crc32(f"{seed} {repeat} {n}".encode()))
        for repeat in range(block.repeats)
        for n, turn in enumerate(block.turns)
    ]
    names = dict.fromkeys(turn.member.name for turn in block.turns)
    kept = KeptBlock(
        number=0,
        name=block.name,
        began="2026-01-02T03:04:05+00:00",
        seconds=sum(trial.duration_s + WARM_UP_S + TURN_EXTRA_S for trial, _ in pairs),
        generated_here=True,
        systems={name: make_facts(name, models=tuple(models), verify_after=GOOD) for name in names},
        trials=tuple(trial for trial, _ in pairs),
    )
    return kept, [rows for _, rows in pairs]


def measure_turn(turn: Turn, peak: float, repeat: int, *, seed: int) -> tuple[Any, Any]:
    name, scenario = turn.member.name, turn.scenario
    if not scenario.is_open:
        trial = make_plain_trial(name, CLOSED * peak, scenario=scenario, level=float(turn.level), cpu=QUIET)
        trial = dataclasses.replace(trial, memory_mib={"resnet50 1": 400.0})
        return trial, make_records([(0, float("nan"), 0.0, 0.1, 200, 0, "")], [ANSWER])
    rate = float(turn.level)
    due = np.arange(-scenario.warm_up_s, scenario.duration_s + 1, 1 / rate)
    latency = draw_latency(rate, peak, len(due), seed)
    rows = [
        (n % 2, at, at, at + took, 200, 0, "") for n, (at, took) in enumerate(zip(due, latency, strict=True))
    ]
    records = make_records(rows, [ANSWER])
    system = System(name=name, models=())
    load = Load(system=system, scenario=scenario, level=rate, payloads=(), expected=BOTH)
    outcome = Rows(records=records, wall_zero=0.0, cpu_shares=(0.1,))
    trial = make_trial(load, outcome, repeat=repeat, duration_s=scenario.duration_s)
    return dataclasses.replace(trial, cpu=QUIET), records
