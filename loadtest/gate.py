"""Two running servers in turns: A B, B A, …, so that drift of the machine hits both alike."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from loadtest.compare import DEFAULT_BOUND, Verdict, compare_pairs, make_verdict
from loadtest.endpoint import find_endpoint
from loadtest.errors import LoadTestError
from loadtest.run import Prepared, Run, Session, find_level, finish, prepare, summarise_runs
from loadtest.scenario import Scenario
from loadtest.session import choose_scenarios, open_session
from server.processes import find_marked

__all__ = ["DEFAULT_BOUND", "DEFAULT_PAIRS", "measure_pairs", "run_gate"]

DEFAULT_PAIRS = 10
FEWEST_PAIRS = 6
"""Fewer give no interval worth the name."""


def measure_pairs(
    measure_a: Callable[[int], float], measure_b: Callable[[int], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Rates of both sides; who goes first alternates."""
    a, b = [], []
    for number in range(pairs):
        if number % 2:
            b.append(measure_b(number))
            a.append(measure_a(number))
        else:
            a.append(measure_a(number))
            b.append(measure_b(number))
    return a, b


def judge_pairs(a: list[float], b: list[float], *, what: str, bound: float) -> Verdict:
    """The verdict on rates that were measured in turns."""
    ratio = compare_pairs(a, b)
    first, second = sum(a) / len(a), sum(b) / len(b)
    return make_verdict(what, first, second, ratio, unit="requests/s", higher_is_better=True, bound=bound)


def run_gate(
    a: str, b: str, options: argparse.Namespace, *, bound: float, pairs: int, report: Callable[[str], None]
) -> Verdict:
    """A and B are run directories of running servers, or URLs; both sides' results are kept."""
    if pairs < FEWEST_PAIRS:
        raise LoadTestError(f"PAIRS must be at least {FEWEST_PAIRS}: got {pairs}")
    session = open_session(options, report, **name_side(a))
    scenario = choose_closed(options, session, report)
    other = replace(session, endpoint=find_endpoint(**name_side(b)))
    sides = [Side(prepare(one, where)) for one, where in ((scenario, session), (scenario, other))]
    level = find_level(scenario.steps[0], scenario, session, sides[0].prepared.payloads)
    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.callback(side.signal, signal.SIGCONT)
            side.signal(signal.SIGSTOP)
        first, second = (side.measurer(level, report) for side in sides)
        rates = measure_pairs(first, second, pairs)
    for side in sides:
        side.finish(level)
    return judge_pairs(*rates, what=f"{scenario.name}, {level:g} users: requests/s in turns", bound=bound)


def name_side(text: str) -> dict[str, str]:
    """A URL, or a run directory."""
    is_url = text.startswith(("http://", "https://"))
    return {"run_dir": "" if is_url else text, "url": text if is_url else ""}


def choose_closed(options: argparse.Namespace, session: Session, report: Callable[[str], None]) -> Scenario:
    """The first closed-loop scenario that fits: rates are compared."""
    fitting = [one for one in choose_scenarios(options, session.endpoint, report) if not one.is_open]
    if not fitting:
        raise LoadTestError("the gate compares rates of closed loops; SCENARIO= must name a closed one")
    if len(fitting) > 1 and not options.scenario:
        report(f"gate: {fitting[0].name} (SCENARIO= names another)")
    return fitting[0]


class Side:
    """One of the two servers, with what was measured of it."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.runs: dict[tuple[int, int], Run] = {}

    def signal(self, number: signal.Signals) -> None:
        """Halt or resume the kit's own server; one given by URL is left alone."""
        run = self.prepared.session.endpoint.run
        for process in find_marked(run.path) if run else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def measurer(self, level: float, report: Callable[[str], None]) -> Callable[[int], float]:
        """Measures one turn."""

        def measure(turn: int) -> float:
            with self.resumed():
                run = self.prepared.run_once(level, turn)
            self.runs[0, turn] = run
            rate = summarise_runs(level, level, [run], self.prepared.scenario).rate.value
            report(
                f"  turn {turn + 1}: {Path(self.prepared.session.endpoint.name).name} {rate:.2f} requests/s"
            )
            return rate

        return measure

    def finish(self, level: float) -> None:
        """Keep the side's result; LoadTestError when it is invalid."""
        steps = [summarise_runs(level, level, list(self.runs.values()), self.prepared.scenario)]
        folder, summary = finish(self.prepared, self.runs, steps)
        if not summary.is_valid():
            why = "; ".join(f"{one.state} ({one.evidence})" for one in summary.findings if one.invalid)
            raise LoadTestError(f"{folder.name} is INVALID: {why}")
