"""Makes INT8's recipes of one model and tries each: written, loaded as a worker loads it, judged, timed."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handlers.shared.errors import LoadError
from handlers.shared.quantization import Recipe, convert_with_recipe, prepare_quantization, read_recipe
from handlers.shared.shapes import Shape
from handlers.shared.state import EXAMPLES, LoadState
from models.gate.figures import Figures, Thresholds
from models.gate.ranking import Inputs, rank_operators
from models.gate.recipes import (
    OBSERVERS,
    Operator,
    Plan,
    choose_left,
    leave_operators,
    list_quantised,
    read_summary,
    render_recipe,
)
from models.gate.search import Trial, find_best
from models.gate.verdict import judge

RANKED_INPUTS = 8
"""Calibration inputs that each operator is run on alone; BERT has 98 operators in INT8."""
TIMED_INPUTS, TIMED_ROUNDS = 16, 7
"""Calibration inputs that a recipe is timed on, and how often, in turn with the first recipe."""
MOST_LEFT = 0.5
"""Of the operators: with more of them in BF16 a model was slower than BF16 alone."""
WARM_UP_RUNS = 2
"""Of each timed batch: TorchScript compiles and oneDNN makes its kernels."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The gate's hands on one model."""

    file: Path
    """The recipe file that a load reads."""
    samples: Sequence[Any]
    """Calibration inputs."""
    load_eager: Callable[[], LoadState]
    load_int8: Callable[[], LoadState]
    batch: Callable[[LoadState, Sequence[Any]], Iterator[Inputs]]
    """Samples → inputs, each valid until the next is asked for."""
    compare: Callable[[LoadState, str], Figures]
    """(model, name of its recipe) → figures on the held-out inputs."""


class Trier:
    """Tries recipes in turn; the first is what the others are timed beside."""

    def __init__(self, bench: Bench, thresholds: Thresholds) -> None:
        self._bench = bench
        self._thresholds = thresholds
        self._first: LoadState | None = None
        self._observed: list[Trial] = []
        """Those that leave no operator: what the others start from."""
        self._errors: dict[Operator, float] = {}
        """By operator of the best of them, once it was ranked."""
        self._left: list[Operator] = []
        """Those that the last recipe left out; the next leaves more."""

    def attempt(self, plan: Plan, earlier: Sequence[Trial], deadline: float) -> Trial:
        """One recipe's trial; OutOfTimeError where it cannot be judged before the deadline."""
        text = self._observe(plan) if plan.observer else self._leave(plan, deadline)
        self._bench.file.write_text(text, encoding="utf-8")
        name = read_recipe(self._bench.file).name
        state = self._bench.load_int8()
        figures = self._bench.compare(state, name)
        # Kept only where it failed: the search ends with the first that passes.
        self._first = self._first or state
        trial = Trial(
            name=name,
            reason=judge(figures, self._thresholds),
            figures=figures,
            time_ratio=self._time_beside_first(state) if earlier else 1.0,
            text=text,
            relative_error=measure_error(state),
        )
        if plan.observer:
            self._observed.append(trial)
        return trial

    def _observe(self, plan: Plan) -> str:
        """A recipe file by what the eager model's activations are on the calibration inputs."""
        assert plan.observer is not None
        state = self._bench.load_eager()
        mapping = OBSERVERS[plan.observer]()
        example = state.inputs(state.classifier.layout.trace_shape)
        prepared = prepare_quantization(state.model, example, mapping)
        with torch.no_grad():
            for inputs in self._bench.batch(state, self._bench.samples):
                prepared(*inputs)
        prepared.save_qconf_summary(qconf_summary=str(self._bench.file))
        recipe = Recipe(name=plan.name, smooth_quant=plan.observer == "smooth quant", bf16_operators=0)
        return render_recipe(recipe, self._bench.file.read_text(encoding="utf-8"))

    def _leave(self, plan: Plan, deadline: float) -> str:
        """The best recipe that leaves none, without the operators that have most of the error."""
        assert plan.left_error is not None
        base = find_best(self._observed)
        summary = read_summary(base.text)
        self._bench.file.write_text(base.text, encoding="utf-8")
        base_recipe = read_recipe(self._bench.file)
        self._errors = self._errors or self._rank(list_quantised(summary), deadline)
        rest = {operator: error for operator, error in self._errors.items() if operator not in self._left}
        self._left += choose_left(rest, plan.left_error)
        _check_left(len(self._left), len(self._errors))
        recipe = Recipe(
            name=f"{base.name}, {len(self._left)} of {len(self._errors)} operators in bf16",
            smooth_quant=base_recipe.smooth_quant,
            bf16_operators=len(self._left),
        )
        return render_recipe(recipe, json.dumps(leave_operators(summary, self._left)))

    def _rank(self, operators: Sequence[Operator], deadline: float) -> dict[Operator, float]:
        state = self._bench.load_eager()
        example = state.inputs(state.classifier.layout.trace_shape)
        converted = convert_with_recipe(state.model, example, self._bench.file)
        batches = self._keep_batches(state, self._bench.samples[:RANKED_INPUTS])
        return rank_operators(converted, operators, batches, deadline=deadline)

    def _time_beside_first(self, state: LoadState) -> float:
        assert self._first is not None
        batches = self._keep_batches(state, self._bench.samples[:TIMED_INPUTS])
        return time_beside(state.run, self._first.run, batches)

    def _keep_batches(self, state: LoadState, samples: Sequence[Any]) -> list[Inputs]:
        return [tuple(tensor.clone() for tensor in inputs) for inputs in self._bench.batch(state, samples)]


def _check_left(left: int, operators: int) -> None:
    """LoadError for what would be called INT8 and hardly be."""
    if left > MOST_LEFT * operators:
        raise LoadError(
            f"{left} of {operators} operators would be in BF16, at most {MOST_LEFT:.0%} may be",
            cure="serve it with PRECISION=bf16",
        )


def measure_error(state: LoadState) -> float:
    """What the self-check of a load will see, on fewer shapes: one for each length."""
    shapes = {shape.length: shape for shape in _list_small_shapes(state)}
    errors = [state.compare(shape, state.run(state.inputs(shape))) for shape in shapes.values()]
    return round(max(errors), 4)


def _list_small_shapes(state: LoadState) -> list[Shape]:
    """Those that hold each example at most once, the largest last."""
    shapes = [shape for shape in state.classifier.layout.list_shapes() if shape.batch_size <= EXAMPLES]
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
