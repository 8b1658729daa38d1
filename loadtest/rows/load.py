"""How long a worker takes to load, per model and precision."""

from __future__ import annotations

from loadtest.bench import Bench
from loadtest.goals import Goal
from loadtest.rows.outcome import Outcome
from loadtest.starts import Start

MODELS = ("resnet50", "bert")
PRECISIONS = ("fp32", "bf16", "int8")
LIMIT_SECONDS = 25.0


def measure_load(bench: Bench) -> Outcome:
    """Take the starts of other rows, and make those that are missing."""
    starts = {
        f"{model} {precision}": _start(bench, model, precision)
        for model in MODELS
        for precision in PRECISIONS
    }
    return Outcome(
        goals=[judge_start(name, start) for name, start in starts.items()],
        notes=[describe_start(name, start) for name, start in starts.items()],
    )


def _start(bench: Bench, model: str, precision: str) -> Start:
    arguments = ("--precision", precision)
    for start in bench.starts:
        if (start.model, start.arguments) == (model, arguments):
            return start
    bench.kit(f"{model} {precision}", model, arguments)
    return bench.starts[-1]


def judge_start(name: str, start: Start) -> Goal:
    """From the birth of the worker's process to its first right answer, while all workers load at once."""
    return Goal(
        what=f"{name}: a worker's start to ready",
        value=start.worker_seconds,
        limit=LIMIT_SECONDS,
        at_least=False,
        unit=" s",
    )


def describe_start(name: str, start: Start) -> str:
    """What is in it, and what comes before."""
    loads = ", ".join(f"{seconds:.1f}" for seconds in start.load_seconds)
    return f"{name}: the handlers' own load {loads} s; server's start to ready {start.server_seconds:.1f} s"
