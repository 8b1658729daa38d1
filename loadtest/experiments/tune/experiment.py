"""`make tune` of one model, or of a mix, as an experiment: what is measured next follows from what is kept.

`start` loads the default plan without end, which tells where its peak may lie. `candidates` measures the
default and its neighbours at three rates about it; `final-N` the best of them against the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.experiment import OWN_SHARE, SERVER_MIB
from loadtest.experiments.tune.candidate import DEFAULT, Candidate
from loadtest.experiments.tune.curve import Limit
from loadtest.experiments.tune.outcome import FINAL, LEAST_REPEATS, START, Outcome, find_outcome, list_out
from loadtest.results.kept import Kept
from loadtest.results.stats import least_requests
from loadtest.scenarios.scenario import AUTO, Arrival, Latency, Scenario
from loadtest.systems.fleet import Member
from loadtest.trials.block import Block, Experiment, Turn

KIND = "tune"
CANDIDATES = "candidates"
SHARES = (0.7, 1.0, 1.3)
"""Of the guess, which is no better than that."""
FINAL_SHARES = (0.9, 1.0, 1.1)
"""Of each plan's own peak: as far as the machine's own ups and downs move it."""
FINAL_REPEATS, FINALS, MOST_FINALS = 3, 2, 3
"""The third one where a peak was not between the rates, or windows of one may not be quoted."""
FEWEST_CANDIDATES = 2
REQUESTS_TIMES = (2, 1)
"""As many as the percentile needs at least, twice: its own interval is then within a third. Where a host is
so slow that such windows leave no time for the final A/B, once: more windows tell more than long ones."""
LEAST_WINDOW_S = 4.0
LEAST_LIMITS = 20
"""Limits in a window: in it, a server that falls 5 % behind the rate breaks the limit."""
CLOSED_WINDOW_S = 8.0
WARM_UP_S = 1.0
"""Of each window: queues fill within a fraction of the limit."""
TIMEOUT_S, CLOSED_TIMEOUT_S = 10.0, 120.0
"""Far beyond any limit: who waits longer counts as failed."""
TURN_EXTRA_S, START_S, VERIFY_S = 6.0, 30.0, 5.0
"""Around each window, for Locust's start and end and the last answers; of a server with its plan; of each
server behind each block: seen on two cores."""
FIRST_WARM_UP_S = 20.0
"""Java compiles what it runs, on the cores that serve: 3 to 4 ms of CPU a request behind the first 600, 1.7
behind 1,400, 1.1 behind 2,000. These are 1,500 requests of ResNet50 on two slow cores (seen)."""
SEED = 200
"""Of the first block's arrivals, the same for all plans; each block has its own."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How each window of one model and one limit is loaded: long enough for the percentile."""

    model: str
    payloads: str
    limit: Limit
    times: int = REQUESTS_TIMES[0]
    """How often the requests that the percentile needs."""
    least_share: float = 1.0
    """Of the requests, those of the rarest model: its percentile is quoted, too."""

    def plan_seconds(self, rate: float) -> float:
        """Of one window at this rate."""
        needed = self.times * least_requests(self.limit.percentile) / self.least_share
        return max(LEAST_WINDOW_S, LEAST_LIMITS * self.limit.seconds, round(needed / rate, 1))

    def find_cost(self, centre: float, shares: Sequence[float], repeats: int = 1) -> float:
        """Seconds of one plan in a block, its server being up."""
        each = [self.plan_seconds(centre * share) + WARM_UP_S + TURN_EXTRA_S for share in shares]
        return repeats * sum(each) + VERIFY_S

    def make_open(self, rate: float, *, seed: int, repeats: int = 1) -> Scenario:
        """Poisson arrivals of this seed."""
        latency = Latency(percentile=self.limit.percentile, limit_ms=1000 * self.limit.seconds)
        return Scenario(
            name=f"tune-{self.model}",
            model=self.model,
            payloads=self.payloads,
            arrival=Arrival(loop="open", seed=seed),
            steps=(rate,),
            warm_up_s=WARM_UP_S,
            duration_s=self.plan_seconds(rate),
            repeats=repeats,
            timeout_s=TIMEOUT_S + self.limit.seconds,
            latency=latency,
        )

    def make_closed(self) -> Scenario:
        """As many users as keep every worker in full batches."""
        return replace(
            self.make_open(1.0, seed=1),
            name=f"tune-{self.model}-saturated",
            arrival=Arrival(loop="closed"),
            steps=(AUTO,),
            duration_s=CLOSED_WINDOW_S,
            timeout_s=CLOSED_TIMEOUT_S,
            leave_out_first_round=True,
            least_rounds=2,
        )


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is measured; what is kept says how far it is."""

    windows: Windows
    plans: Mapping[str, Candidate]
    """The default first."""
    instances: int
    budget_s: float
    memory_mib: float
    """For servers that are up at once."""
    make_member: Callable[[str, Candidate], Member]
    """By name and numbers; the default's own rules give it its numbers."""

    def next_block(self, kept: Kept) -> Block | None:
        if kept.find(START) is None:
            # Twice as many users as fill a batch in every worker: one is computed while the next one gathers.
            default = self.plans[DEFAULT]
            users = 2 * default.workers * sum(default.batch.values())
            member = self.make_member(DEFAULT, default)
            turn = Turn(member=member, scenario=self.windows.make_closed(), level=users)
            return Block(name=START, turns=(turn,), warm_up_s=FIRST_WARM_UP_S)
        found = find_outcome(kept)
        windows, room = self._fit(kept, found.guess)
        if kept.find(CANDIDATES) is None:
            centres = dict.fromkeys([*self.plans][: 1 + room], found.guess)
            return self._make_block(CANDIDATES, windows, centres, SHARES)
        return self._next_final(kept, found, windows)

    def _fit(self, kept: Kept, guess: float) -> tuple[Windows, int]:
        """The longest windows that leave the budget room for two candidates and the final A/B; and how many
        candidates budget and memory hold with them."""
        most = min(len(self.plans), self._count_up(kept)) - 1
        fewest, left = min(FEWEST_CANDIDATES, most), self.budget_s - kept.blocks[0].seconds

        def fits(count: int, one: Windows) -> bool:
            finals = 2 * FINALS * one.find_cost(guess, FINAL_SHARES, FINAL_REPEATS)
            starts = count * (START_S + FIRST_WARM_UP_S)
            return starts + (1 + count) * one.find_cost(guess, SHARES) + finals <= left

        each = [replace(self.windows, times=times) for times in REQUESTS_TIMES if times <= self.windows.times]
        windows = next((one for one in each if fits(fewest, one)), each[-1])
        return windows, next((count for count in range(most, fewest, -1) if fits(count, windows)), fewest)

    def _count_up(self, kept: Kept) -> int:
        """Servers that the memory holds, by what the default's took under its load."""
        took = sum(kept.blocks[0].trials[-1].memory_mib.values())
        each = OWN_SHARE * took + SERVER_MIB * max(1, self.instances)
        if 2 * each > self.memory_mib:
            raise LoadTestError(
                f"two servers of {each:.0f} MiB must be up together: got {self.memory_mib:.0f} MiB for them; "
                "end other programs"
            )
        return int(self.memory_mib / each)

    def _next_final(self, kept: Kept, found: Outcome, windows: Windows) -> Block | None:
        """The default and the best candidate, or the default alone where there is none."""
        finals = sum(block.name.startswith(FINAL) for block in kept.list_blocks())
        if finals == MOST_FINALS or not found.seen or DEFAULT in list_out(kept):
            return None
        centres = {name: found.find_centre(name) for name in (DEFAULT, found.best) if name}
        cost = sum(windows.find_cost(one, FINAL_SHARES, FINAL_REPEATS) for one in centres.values())
        held = cost <= self.budget_s - sum(block.seconds for block in kept.blocks)
        rows = [found.find_row(name) for name in centres]
        between = [bool(row.final and row.peak and row.peak.known) for row in rows]
        # Beyond the budget, too: without these a quarter of an hour has told nothing.
        unproven = found.seems_better and found.repeats < LEAST_REPEATS
        needed = unproven or not finals or (finals < FINALS and not between[0])
        if not needed and not (held and (finals < FINALS or not all(between))):
            return None
        return self._make_block(f"{FINAL}-{finals + 1}", windows, centres, FINAL_SHARES, finals + 1)

    def _make_block(
        self,
        name: str,
        windows: Windows,
        centres: Mapping[str, float],
        shares: Sequence[float],
        final: int = 0,
    ) -> Block:
        """Each plan at each share of its centre, share by share: who is compared takes turns seconds apart,
        and a machine drifts within minutes."""
        repeats = FINAL_REPEATS if final else 1
        turns = []
        for share, plan in ((share, plan) for share in shares for plan in centres):
            rate = round(centres[plan] * share, 2)
            scenario = windows.make_open(rate, seed=SEED + final, repeats=repeats)
            member = self.make_member(plan, self.plans[plan])
            turns.append(Turn(member=member, scenario=scenario, level=rate))
        return Block(name=name, turns=tuple(turns), repeats=repeats, warm_up_s=FIRST_WARM_UP_S)


def make_experiment(course: Course, asked: Mapping[str, Any]) -> Experiment:
    """`asked` holds all that decides what is measured, as plain values."""
    name = "-".join((KIND, *course.plans[DEFAULT].batch))
    return Experiment(kind=KIND, name=name, asked=asked, next_block=course.next_block)
