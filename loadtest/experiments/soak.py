"""`make soak`: ten minutes of mixed requests to both models behind the door, at 80 % of what they reach: do
the workers' memory and the latency stay as they were, and does nothing fail?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.results.figures import summarise
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.results.trial import Series
from loadtest.scenarios.scenario import LONGEST_S, Arrival, Latency, Scenario
from loadtest.systems.kit import kit
from loadtest.trials.block import Block, Experiment, Turn, Verdict
from loadtest.trials.validity import OF_THE_MACHINE, find_doubts
from server.archives import read_archive

KIND = "soak"
MODELS = ("resnet50", "bert")
FIRST_REQUESTS = 1_000
"""In a closed loop, before memory is looked at first: they find the rate, too."""
SECONDS = 600.0
LEGS = 4
"""Equal parts of the open loop; memory is kept after each, so that one sees whether it still grows."""
USERS = 64
SHARE = 0.8
"""Of the closed loop's rate."""
GROWTH_PERCENT = 5.0
PERCENTILE = 99.0
SLOWER = 1.1
"""The last leg's percentile to the first one's, at most."""
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


def check_soak(seconds: float) -> None:
    """Judges what was asked for; LoadTestError says what may be."""
    if not 60 <= seconds <= LONGEST_S * LEGS:
        raise LoadTestError(f"DURATION must be 60 to {LONGEST_S * LEGS:g}: got {seconds:g}")


def make_experiment(store: Path, *, seconds: float = SECONDS, precision: str = "int8") -> Experiment:
    """A block for each leg; the server stays up from the first to the last."""
    check_soak(seconds)
    archives = {model: read_archive(store / f"{model}.mar").archive_id for model in MODELS}
    return Experiment(
        kind=KIND,
        name=KIND,
        asked={"seconds": seconds, "precision": precision, "archives": archives},
        next_block=lambda kept: plan_leg(kept, seconds, precision),
    )


def plan_leg(kept: Kept, seconds: float, precision: str) -> Block | None:
    """The closed loop, then the open ones; None after the last."""
    leg = len(kept.blocks)
    if leg == 0:
        return make_block(1, Arrival(loop="closed", seed=SEED), USERS, precision, stop_after=FIRST_REQUESTS)
    if leg > LEGS:
        return None
    arrival, (first,) = Arrival(loop="open", seed=SEED + leg), kept.list_series(kept.blocks[0])
    rate = round(SHARE * first.trials[-1].rate, 2)
    return make_block(leg + 1, arrival, rate, precision, duration_s=seconds / LEGS)


def make_block(leg: int, arrival: Arrival, level: float, precision: str, **bound: float) -> Block:
    """Texts and photographs of all forms, in another order in each leg."""
    models = " ".join(MODELS)
    scenario = Scenario(
        name=f"leg-{leg}",
        model=models,
        payloads="mixture",
        arrival=arrival,
        steps=(level,),
        warm_up_s=0.0,
        repeats=1,
        latency=Latency(percentile=PERCENTILE),
        **{"duration_s": LONGEST_S, **bound},  # type: ignore[arg-type]
    )
    member = kit(f"kit {precision}", models, ("--precision", precision), instances=None)
    return Block(name=scenario.name, turns=(Turn(member=member, scenario=scenario, level=level),))


def judge(kept: Kept) -> list[Verdict]:
    """Of the tail, and of each worker; one alone, without a figure, where something makes them void."""
    try:
        legs = list_legs(kept)
        growths = compare_memory(*(legs[number].trials[-1].memory_mib for number in (0, -1)))
        slower = judge_latency(legs[1], legs[-1])
    except LoadTestError as problem:
        return [Verdict(what="what became of memory and latency", why=str(problem))]
    return [slower, *(judge_growth(one, kept.asked["seconds"]) for one in growths)]


def judge_growth(one: Growth, seconds: float) -> Verdict:
    """Of one worker."""
    return Verdict(
        what=f"{one.model} worker {one.pid}: growth of its resident memory",
        figure=Interval(value=one.percent, low=one.percent, high=one.percent),
        unit=" %",
        limit=GROWTH_PERCENT,
        at_least=False,
        why=f"{one.early_mib:.0f} MiB after {FIRST_REQUESTS} requests, "
        f"{one.late_mib:.0f} MiB after {seconds / 60:g} minutes more",
    )


def judge_latency(first: Series, last: Series) -> Verdict:
    """The tail of the last leg to the first one's, with the widest interval that theirs allow."""
    early, late = (summarise(leg).percentiles_ms[f"{PERCENTILE:g}"] for leg in (first, last))
    if early is None or late is None:
        raise LoadTestError(f"p{PERCENTILE:g} cannot be told from so few requests; run longer (DURATION=)")
    return Verdict(
        what=f"p{PERCENTILE:g} of the last leg / of the first one",
        figure=Interval(
            value=late.value / early.value, low=late.low / early.high, high=late.high / early.low
        ),
        unit="×",
        limit=SLOWER,
        at_least=False,
        why=f"{early.value:.0f} ms, then {late.value:.0f} ms, at {first.level:g} requests/s",
    )


def list_legs(kept: Kept) -> list[Series]:
    """All of them; LoadTestError where one is missing, a request failed, or an answer was not right."""
    legs = [series for block in kept.blocks for series in kept.list_series(block)]
    if len(legs) <= LEGS:
        raise LoadTestError(f"{len(legs)} of {LEGS + 1} legs are measured")
    # Memory grows by requests, whatever else the machine does.
    doubts = [str(one) for leg in legs for one in find_doubts(leg, without=OF_THE_MACHINE)]
    if doubts:
        raise LoadTestError("; ".join(doubts))
    return legs


def compare_memory(early: Mapping[str, float], late: Mapping[str, float]) -> list[Growth]:
    """Per worker; one that was started anew in between makes the comparison void."""
    if set(early) != set(late) or not early:
        raise LoadTestError(f"workers must stay the same: got {sorted(late)} after {sorted(early)}")
    return [
        Growth(model=worker.split()[0], pid=int(worker.split()[1]), early_mib=mib, late_mib=late[worker])
        for worker, mib in early.items()
    ]
