"""What the published tutorials claim, beside what was measured here: there, or not, or why not told.

Sources: "Grokking PyTorch Intel CPU performance from first principles", parts 1 and 2 (PyTorch tutorials:
torchserve_with_ipex, torchserve_with_ipex_2), on dual-socket Xeons with VTune. A figure of another model on
another machine is not asked for to the digit: what is judged is whether the effect is there. Claims about one
setting alone, made of training DenseNet121, are judged by the last ladder of that model, if one is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.experiments.ladder.experiment import name_experiment
from loadtest.experiments.ladder.judge import HELPS, SLOWS, UNKNOWN
from loadtest.experiments.ladder.rows import REFUSED, Row, make_rows
from loadtest.experiments.ladder.rungs import DENSENET121, SETTINGS
from loadtest.experiments.profile.counters import BACKEND, COUNTERS
from loadtest.experiments.profile.evidence import Evidence, read_calls, read_seen
from loadtest.experiments.profile.figures import (
    compare_rates,
    count_faults,
    count_migrations,
    count_reorders,
    find_fused,
    find_speed,
    find_waiting,
)
from loadtest.results.kept import Kept, list_results, read_kept

CONFIRMED, NOT_HERE, NOT_TESTABLE = "the effect is there", "not on this host", "not testable here"
FEW_MIGRATIONS = 1.0
"""A second: a thread that moves less often has nothing to gain."""
LADDER = "one setting alone is the question of `make ladder MODEL=densenet121`; here all of them differ"
SAME_HOST = ("cpu", "flags", "usable_cores")
IN_PROCESS = "in process, everything off → the kit's thread"
GIVEN_BACK = ("madvise", "munmap", "mmap", "brk")
Measured = tuple[str, str]
"""What was seen, and the verdict."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What tells something, and is not of the two systems."""

    steps: Mapping[str, Row] = field(default_factory=dict)
    """Rung of DenseNet121's ladder → what it gave."""
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """In one process, everything off, then as planned → system calls for each request."""
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of the same two → metric of perf's top-down analysis, percent."""


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """One sentence of a tutorial."""

    text: str

    @abstractmethod
    def tell(self, other: Evidence, served: Evidence, beside: Beside) -> Measured:
        """From what the kit is compared with, the kit, and what else was measured."""


@dataclass(frozen=True, kw_only=True)
class SideClaim(Claim):
    """Told by the two systems side by side."""

    judge: Callable[[Evidence, Evidence], Measured]

    def tell(self, other: Evidence, served: Evidence, beside: Beside) -> Measured:
        return self.judge(other, served)


@dataclass(frozen=True, kw_only=True)
class StepClaim(Claim):
    """Told by one rung of the ladder over the one before."""

    rung: str
    verdict: str = HELPS
    """The ladder's, with which the effect is there."""
    beyond: str = ""
    """What the rung changes beside what is claimed: it then tells of more than the claim."""

    def tell(self, other: Evidence, served: Evidence, beside: Beside) -> Measured:
        row = beside.steps.get(self.rung)
        if row is None or row.to_before is None:
            refused = row.reason if row and row.state == REFUSED else ""
            why = f"the ladder could not serve it ({refused})" if refused else LADDER
            return "–", f"{NOT_TESTABLE}: {why}"
        ratio = row.to_before
        seen = f"{ratio.value:.2f}× ({ratio.low:.2f}-{ratio.high:.2f}) of DenseNet121, `{row.rung.label}`"
        if self.beyond or row.verdict == UNKNOWN:
            return seen, f"{NOT_TESTABLE}: {self.beyond or UNKNOWN}"
        return seen, CONFIRMED if row.verdict == self.verdict else NOT_HERE


@dataclass(frozen=True, kw_only=True)
class CallsClaim(Claim):
    """Told by system calls of the handler without a server, with everything off and as planned."""

    names: tuple[str, ...]

    def tell(self, other: Evidence, served: Evidence, beside: Beside) -> Measured:
        sums = [sum(one[name] for name in self.names) for one in beside.calls.values()]
        return _compare(*_pair(sums), f"calls/request {IN_PROCESS}", 0.5)


@dataclass(frozen=True, kw_only=True)
class CountersClaim(Claim):
    """Told by hardware counters of the same two."""

    def tell(self, other: Evidence, served: Evidence, beside: Beside) -> Measured:
        if not beside.counters:
            return "–", f"{NOT_TESTABLE}: no counters were read (why: below)"
        shares = [one[name] for one in beside.counters.values() for name in BACKEND if name in one]
        return _compare(*_pair(shares), f"% backend bound {IN_PROCESS}", 1.0)


def _pair(values: Sequence[float]) -> tuple[float | None, float | None]:
    """None where not both told."""
    return (values[0], values[1]) if len(values) == 2 else (None, None)


def _read_steps(kept: Kept) -> dict[str, Row]:
    """Of the last ladder of this host that has a step to tell."""
    for folder in reversed(list_results(kept.folder.parent, name=name_experiment(DENSENET121, SETTINGS))):
        ladder = read_kept(folder)
        if any(ladder.host.get(name) != kept.host.get(name) for name in SAME_HOST):
            continue
        rows = {row.rung.name: row for row in make_rows(ladder)}
        if any(row.to_before for row in rows.values()):
            return rows
    return {}


def read_beside(kept: Kept) -> Beside:
    """Of the same result, and of the last ladder that is kept next to it; empty where there is none."""
    return Beside(steps=_read_steps(kept), calls=read_calls(kept), counters=read_seen(kept, COUNTERS))


def _compare(
    before: float | None, after: float | None, unit: str, less: float, least: float = 0.0
) -> Measured:
    """An effect is there when what should become less, and was more than the least, becomes so much less."""
    if before is None or after is None:
        return "–", f"{NOT_TESTABLE}: one of the two does not tell"
    verdict = CONFIRMED if after <= less * before and before > least else NOT_HERE
    return f"{_show(before)} → {_show(after)} {unit}", verdict


def _show(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def judge_rate(other: Evidence, served: Evidence) -> Measured:
    ratio = compare_rates(other, served)
    return f"{ratio.value:.2f}× ({ratio.low:.2f}-{ratio.high:.2f})", CONFIRMED if ratio.low > 1 else NOT_HERE


def judge_fused(other: Evidence, served: Evidence) -> Measured:
    before, after = find_fused(other), find_fused(served)
    if before is None or after is None:
        return "–", f"{NOT_TESTABLE}: one of the two wrote no log of oneDNN"
    return f"{before:.0f} % → {after:.0f} % of the convolutions", CONFIRMED if after > before else NOT_HERE


def judge_speed(other: Evidence, served: Evidence) -> Measured:
    before, after = find_speed(other), find_speed(served)
    if not before or not after:
        return "–", f"{NOT_TESTABLE}: one of the two wrote no log of oneDNN"
    shown = f"{before / 1e9:.0f} → {after / 1e9:.0f}·10⁹ multiply-adds/s of a core, in the precision of each"
    return shown, CONFIRMED if after > before else NOT_HERE


def judge_remote(other: Evidence, served: Evidence) -> Measured:
    shares = [worker.remote for one in (other, served) for worker in one.workers]
    if None in shares or not any(shares):
        return "–", f"{NOT_TESTABLE}: all memory is on one NUMA node, or the kernel does not say where"
    mean = [sum(worker.remote or 0 for worker in one.workers) / len(one.workers) for one in (other, served)]
    return _compare(100 * mean[0], 100 * mean[1], "% remote", 0.5)


CLAIMS: tuple[Claim, ...] = (
    SideClaim(text="TorchServe with IPEX and pinned workers serves ResNet50 7.71× as fast", judge=judge_rate),
    SideClaim(
        text="pinning ends migrations: one thread moved 81, then 5 times",
        judge=lambda a, b: _compare(
            count_migrations(a), count_migrations(b), "migrations/s", 0.5, FEW_MIGRATIONS
        ),
    ),
    SideClaim(
        text="with as many threads as cores they do not wait: core bound 88 % → 46 %",
        judge=lambda a, b: _compare(find_waiting(a), find_waiting(b), "% of ready time in queues", 0.5),
    ),
    CallsClaim(text="spin time 4.98 → 0.26 s, sched_yield on top", names=("sched_yield",)),
    SideClaim(text="local memory: remote accesses 51 % → 10.5 %", judge=judge_remote),
    SideClaim(
        text="jemalloc or tcmalloc keep memory, glibc gives it back: fewer page faults (1.16× to 2.2×)",
        judge=lambda a, b: _compare(count_faults(a), count_faults(b), "minor faults/request", 0.5),
    ),
    CallsClaim(text="glibc gives memory back (madvise, munmap) and takes it again", names=GIVEN_BACK),
    SideClaim(text="conv2d is 2.6× as fast by IPEX", judge=judge_speed),
    SideClaim(text="Conv + ReLU are fused (2.7× to 3.2×)", judge=judge_fused),
    SideClaim(
        text="channels_last: reorders of activations are gone",
        judge=lambda a, b: _compare(count_reorders(a), count_reorders(b), "for each convolution", 0.5),
    ),
    StepClaim(text="threads placed on their cores 1.56× (GNU's OpenMP)", rung="pinning",
              beyond="this rung also makes one worker of each core, with Intel's OpenMP"),
    StepClaim(text="Intel's OpenMP 1.1× over GNU's", rung="openmp"),
    StepClaim(text="IPEX over eager 1.4×", rung="ipex"),
    StepClaim(text="torch.compile is slower on a small network", rung="compile", verdict=SLOWS),
    CountersClaim(text="top-down analysis: fewer slots wait for data or units (backend bound)"),
)  # fmt: skip
