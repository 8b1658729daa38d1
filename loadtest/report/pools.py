"""What `make profile` measures without a server: pools of the same cores, and what programs saw in one."""

from __future__ import annotations

from loadtest.experiments.profile.counters import COUNTERS
from loadtest.experiments.profile.evidence import list_beside, read_calls, read_seen
from loadtest.experiments.profile.flames import FLAMES
from loadtest.experiments.profile.pools import BLOCK as POOLS
from loadtest.experiments.profile.pools import TOOLS
from loadtest.report.section import Drawing, Table
from loadtest.report.words import NONE, show_rate, show_ratio
from loadtest.results.figures import summarise
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_ratio


def tabulate_pooled(kept: Kept) -> tuple[Table, ...]:
    return tabulate_calls(kept), tabulate_counters(kept), tabulate_pools(kept)


def list_problems(kept: Kept) -> list[str]:
    """What no program could look at, and why."""
    return [
        f"No {tool.what}: {problem}."
        for tool in TOOLS
        for problem in dict.fromkeys(read_seen(kept, tool, tool.problem).values())
    ]


def make_drawings(kept: Kept) -> tuple[Drawing, ...]:
    title = "Flame graph of one process, native frames too: click to enlarge"
    drawn = read_seen(kept, FLAMES).values()
    return tuple(Drawing(name="flame", title=title, svg=svg.encode()) for svg in drawn)


def tabulate_pools(kept: Kept) -> Table:
    series = list_beside(kept, POOLS)
    rates = {one.system: one.turn_rates for one in series}
    rows = [
        (
            one.system,
            *show_rate(summarise(one).rate),
            "1" if one is series[0] else show_ratio(find_ratio(rates, one.system, series[0].system)),
        )
        for one in series
    ]
    return Table(
        title="The same cores otherwise",
        note="The kit's handler without a server, at full speed: intra-op threads, processes, and parts of "
        "a batch by TorchScript's fork and wait on inter-op threads. Requests are decoded on one thread of "
        "each process.",
        header=("in process", "requests/s", "95 % interval", "to the first"),
        rows=tuple(rows),
    )


def tabulate_calls(kept: Kept) -> Table:
    calls = read_calls(kept)
    names = list(dict.fromkeys(name for one in calls.values() for name in one))
    return Table(
        title="System calls",
        note="For each request, of the handler in one process without a server at full speed, by strace. "
        "madvise, munmap and brk give memory back that mmap and brk took; sched_yield is a thread that waits "
        "without sleeping, futex one that sleeps or wakes another.",
        header=("in process", *names),
        rows=tuple((one, *(f"{each.get(name, 0):.3g}" for name in names)) for one, each in calls.items()),
    )


def tabulate_counters(kept: Kept) -> Table:
    counted = read_seen(kept, COUNTERS)
    names = list(dict.fromkeys(name for one in counted.values() for name in one))
    return Table(
        title="Top-down analysis",
        note="Percent of the pipeline's slots, of the handler in one process without a server, by perf.",
        header=("metric", *counted),
        rows=tuple((name, *(_show_percent(one.get(name)) for one in counted.values())) for name in names),
    )


def _show_percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"
