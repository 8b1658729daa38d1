"""Thousands of mixed requests to the kit with both models, and whether its workers' memory stays bounded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.scenarios.scenario import LONGEST_S, Arrival, Scenario
from loadtest.systems.kit import kit
from loadtest.trials.block import Block, Experiment, Turn, Verdict
from loadtest.trials.validity import OF_THE_MACHINE, find_doubts
from server.archives import read_archive

KIND = "soak"
MODELS = ("resnet50", "bert")
FIRST_REQUESTS, REQUESTS = 1_000, 20_000
LEGS = 4
"""Parts of the rest; memory is kept after each, so that one sees whether it still grows."""
USERS = 64
LIMIT_PERCENT = 5.0
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One worker's resident memory, early and late."""

    model: str
    pid: int
    early_mib: float
    late_mib: float

    @property
    def percent(self) -> float:
        return 100 * (self.late_mib / self.early_mib - 1)

    @property
    def bounded(self) -> bool:
        return self.percent <= LIMIT_PERCENT


def check_soak(requests: int) -> None:
    """Judges what was asked for; LoadTestError says what may be."""
    if requests < FIRST_REQUESTS + LEGS:
        raise LoadTestError(f"REQUESTS must be at least {FIRST_REQUESTS + LEGS}: got {requests}")


def make_experiment(store: Path, *, requests: int = REQUESTS, precision: str = "int8") -> Experiment:
    """A block for each leg; the server stays up from the first to the last."""
    check_soak(requests)
    blocks = [make_block(leg, count, precision) for leg, count in enumerate(cut_into_legs(requests))]
    archives = {model: read_archive(store / f"{model}.mar").archive_id for model in MODELS}
    return Experiment(
        kind=KIND,
        name=KIND,
        asked={"requests": requests, "precision": precision, "archives": archives},
        next_block=lambda kept: blocks[len(kept.blocks)] if len(kept.blocks) < len(blocks) else None,
    )


def cut_into_legs(requests: int) -> list[int]:
    """The first ones, after which memory is read for the comparison, and the rest in about equal parts."""
    rest = requests - FIRST_REQUESTS
    cuts = [rest * leg // LEGS for leg in range(LEGS + 1)]
    return [FIRST_REQUESTS, *(end - begin for begin, end in itertools.pairwise(cuts))]


def make_block(leg: int, requests: int, precision: str) -> Block:
    """Texts and photographs of all forms, in another order in each leg."""
    models = " ".join(MODELS)
    scenario = Scenario(
        name=f"leg-{leg + 1}",
        model=models,
        payloads="mixture",
        arrival=Arrival(loop="closed", seed=SEED + leg),
        steps=(USERS,),
        warm_up_s=0.0,
        duration_s=LONGEST_S,
        repeats=1,
        stop_after=requests,
    )
    member = kit(f"kit {precision}", models, ("--precision", precision))
    return Block(name=scenario.name, turns=(Turn(member=member, scenario=scenario, level=USERS),))


def judge(kept: Kept) -> list[Verdict]:
    """One verdict a worker; one alone, without a figure, where something makes the comparison void."""
    try:
        growths = find_growths(kept)
    except LoadTestError as problem:
        return [Verdict(what="growth of the workers' memory", why=str(problem))]
    return [
        Verdict(
            what=f"{one.model} worker {one.pid}: growth of its resident memory",
            figure=Interval(value=one.percent, low=one.percent, high=one.percent),
            unit=" %",
            limit=LIMIT_PERCENT,
            at_least=False,
            why=f"{one.early_mib:.0f} MiB after {FIRST_REQUESTS} requests, "
            f"{one.late_mib:.0f} MiB after {kept.asked['requests']}",
        )
        for one in growths
    ]


def find_growths(kept: Kept) -> list[Growth]:
    """From the first leg to the last; LoadTestError where one is missing, or an answer was not right."""
    legs = [series for block in kept.blocks for series in kept.list_series(block)]
    if len(legs) <= LEGS:
        raise LoadTestError(f"{len(legs)} of {LEGS + 1} legs are measured")
    # Memory grows by requests, whatever else the machine does.
    doubts = [str(one) for leg in legs for one in find_doubts(leg, without=OF_THE_MACHINE)]
    if doubts:
        raise LoadTestError("; ".join(doubts))
    return compare_memory(*(legs[number].trials[-1].memory_mib for number in (0, -1)))


def compare_memory(early: Mapping[str, float], late: Mapping[str, float]) -> list[Growth]:
    """Per worker; one that was started anew in between makes the comparison void."""
    if set(early) != set(late) or not early:
        raise LoadTestError(f"workers must stay the same: got {sorted(late)} after {sorted(early)}")
    return [
        Growth(model=worker.split()[0], pid=int(worker.split()[1]), early_mib=mib, late_mib=late[worker])
        for worker, mib in early.items()
    ]
