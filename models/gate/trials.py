"""Makes INT8's recipes of one model and tries each: written, loaded as a worker does, validated, timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from handlers.backends.catalogue import has_wide_sums
from handlers.backends.loader import EXAMPLES, Calibration, LoadState, Made, Quantiser
from handlers.shared.shapes import Shape
from models.definition import Thresholds
from models.gate.figures import Figures
from models.gate.search import Trial
from models.gate.verdict import judge

Inputs = tuple[torch.Tensor, ...]
TIMED_INPUTS, TIMED_ROUNDS = 16, 7
"""Calibration inputs that a recipe is timed on, and how often, in turn with the first recipe."""
WARM_UP_RUNS = 2
"""Of each timed batch: TorchScript compiles and oneDNN makes its kernels."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The gate's hands on one model and one backend."""

    calibration: Calibration
    quantiser: Quantiser
    load_int8: Callable[[], LoadState]
    compare: Callable[[LoadState, str], Figures]
    """(model, name of its recipe) → figures on the held-out inputs."""


class Trier:
    """Tries recipes in turn; the first is what the others are timed beside."""

    def __init__(self, bench: Bench, thresholds: Thresholds) -> None:
        self._bench = bench
        self._thresholds = thresholds
        self._first: LoadState | None = None

    def attempt(self, recipe: Any, earlier: Sequence[Trial]) -> Trial:
        """One recipe's trial."""
        made = self._bench.quantiser.make(recipe)
        write_made(made, self._bench.calibration.directory)
        state = self._bench.load_int8()
        figures = self._bench.compare(state, made.name)
        # Kept only where it failed: the search ends with the first that passes.
        self._first = self._first or state
        return Trial(
            name=made.name,
            reason=judge(figures, self._thresholds),
            figures=replace(figures, relative_error=measure_error(state), wide_sums=has_wide_sums()),
            time_ratio=self._time_beside_first(state) if earlier else 1.0,
            made=made,
        )

    def _time_beside_first(self, state: LoadState) -> float:
        assert self._first is not None
        batches = [
            tuple(tensor.clone() for tensor in inputs)
            for inputs in self._bench.calibration.batch(state, TIMED_INPUTS)
        ]
        return time_beside(state.run, self._first.run, batches)


def write_made(made: Made, directory: Path) -> None:
    """Where a load reads it."""
    for name, content in made.files.items():
        # Anew: a model that is loaded may have its file mapped.
        (directory / name).unlink(missing_ok=True)
        (directory / name).write_bytes(content)


def measure_error(state: LoadState) -> float:
    """What the self-check of a load will see, on fewer shapes: one for each length."""
    shapes = {shape.length: shape for shape in _list_small_shapes(state)}
    errors = [state.compare(shape, state.run(state.inputs(shape))) for shape in shapes.values()]
    return round(max(errors), 4)


def _list_small_shapes(state: LoadState) -> list[Shape]:
    """Those that hold each example at most once, the largest last."""
    shapes = [shape for shape in state.task.layout.list_shapes() if shape.batch_size <= EXAMPLES]
    return sorted(shapes, key=lambda shape: shape.batch_size)


def time_beside(
    run: Callable[[Inputs], object],
    other: Callable[[Inputs], object],
    batches: Sequence[Inputs],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Median time of a batch beside the other's, in turn, so that other work on the machine meets both."""
    seconds: dict[Callable[[Inputs], object], list[float]] = {run: [], other: []}
    for number in range(WARM_UP_RUNS + TIMED_ROUNDS):
        for inputs in batches:
            for one, taken in seconds.items():
                began = clock()
                one(inputs)
                if number >= WARM_UP_RUNS:
                    taken.append(clock() - began)
    return round(statistics.median(seconds[run]) / statistics.median(seconds[other]), 2)
