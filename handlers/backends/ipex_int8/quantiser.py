"""Quantises by IPEX's recipes: observe the calibration data, or leave the worst operators in BF16."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from handlers.backends.catalogue import BACKENDS
from handlers.backends.ipex_int8.convert import (
    Recipe,
    convert_with_recipe,
    prepare_quantization,
    read_recipe,
)
from handlers.backends.ipex_int8.ranking import rank_operators
from handlers.backends.ipex_int8.recipes import (
    OBSERVERS,
    Operator,
    Plan,
    choose_left,
    leave_operators,
    list_plans,
    list_quantised,
    read_summary,
    render_recipe,
)
from handlers.backends.loader import Calibration, Made
from handlers.shared.errors import LoadError

(RECIPE_FILE,) = BACKENDS["ipex"].files["int8"]
RANKED_INPUTS = 8
"""Calibration inputs that each operator is run on alone; BERT has 98 operators in INT8."""
MOST_LEFT = 0.5
"""Of the operators: with more of them in BF16 a model was slower than BF16 alone."""


class IpexQuantiser:
    """The recipes of one model; what is left out of one is left out of the next too."""

    def __init__(self, calibration: Calibration, *, convolutional: bool) -> None:
        self.recipes = list_plans(convolutional=convolutional)
        self._calibration = calibration
        self._errors: dict[Operator, float] = {}
        """By operator of the best of those that observe, once it was ranked."""
        self._left: list[Operator] = []
        """Those that the last recipe left out; the next leaves more."""

    def make(self, recipe: Plan, base: Made | None, deadline: float) -> Made:
        """A recipe file."""
        name, text = self._observe(recipe) if base is None else self._leave(recipe, base, deadline)
        return Made(name=name, files={RECIPE_FILE: text.encode()})

    @property
    def _file(self) -> Path:
        return self._calibration.directory / RECIPE_FILE

    def _observe(self, plan: Plan) -> tuple[str, str]:
        """By what the eager model's activations are on the calibration inputs."""
        assert plan.observer is not None
        state = self._calibration.load_eager()
        mapping = OBSERVERS[plan.observer]()
        prepared = prepare_quantization(state.model, state.trace_inputs, mapping)
        with torch.no_grad():
            for inputs in self._calibration.batch(state, None):
                prepared(*inputs)
        prepared.save_qconf_summary(qconf_summary=str(self._file))
        recipe = Recipe(name=plan.name, smooth_quant=plan.observer == "smooth quant", bf16_operators=0)
        return plan.name, render_recipe(recipe, self._file.read_text(encoding="utf-8"))

    def _leave(self, plan: Plan, base: Made, deadline: float) -> tuple[str, str]:
        """The best recipe that leaves none, without the operators that have most of the error."""
        assert plan.left_error is not None
        self._file.write_bytes(base.files[RECIPE_FILE])
        summary = read_summary(self._file.read_text(encoding="utf-8"))
        smooth_quant = read_recipe(self._file).smooth_quant
        self._errors = self._errors or self._rank(list_quantised(summary), deadline)
        rest = {operator: error for operator, error in self._errors.items() if operator not in self._left}
        self._left += choose_left(rest, plan.left_error)
        check_left(len(self._left), len(self._errors))
        name = f"{base.name}, {len(self._left)} of {len(self._errors)} operators in bf16"
        recipe = Recipe(name=name, smooth_quant=smooth_quant, bf16_operators=len(self._left))
        return name, render_recipe(recipe, json.dumps(leave_operators(summary, self._left)))

    def _rank(self, operators: list[Operator], deadline: float) -> dict[Operator, float]:
        state = self._calibration.load_eager()
        converted = convert_with_recipe(state.model, state.trace_inputs, self._file)
        batches = [
            tuple(tensor.clone() for tensor in inputs)
            for inputs in self._calibration.batch(state, RANKED_INPUTS)
        ]
        return rank_operators(converted, operators, batches, deadline=deadline)


def check_left(left: int, operators: int) -> None:
    """LoadError for what would be called INT8 and hardly be."""
    if left > MOST_LEFT * operators:
        raise LoadError(
            f"{left} of {operators} operators would be in BF16, at most {MOST_LEFT:.0%} may be",
            cure="serve it with PRECISION=bf16",
        )
