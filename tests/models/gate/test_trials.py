"""What is measured of a recipe beside its answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from handlers.shared.outputs import relative_error
from handlers.shared.shapes import Shape
from models.gate.trials import measure_error

REFERENCE = torch.tensor([[1.0, -1.0], [2.0, -2.0], [1.0, -1.0], [4.0, -4.0]])
OFF = torch.tensor([[0.0], [0.0], [0.1], [0.5]])
"""By how much of itself each example's answer is off."""


def test_the_error_is_the_worst_of_all_examples_on_one_shape_for_each_length():
    # As a grid lists them: the largest first, also some that would hold examples twice.
    shapes = [Shape(batch_size=rows, length=length) for length in (16, 8) for rows in (8, 4, 2, 1)]
    ran = []

    def run(rows: list[int]) -> torch.Tensor:
        ran.append(rows)
        return REFERENCE[rows] * (1 + OFF[rows])

    state = SimpleNamespace(
        classifier=SimpleNamespace(layout=SimpleNamespace(list_shapes=lambda: shapes)),
        inputs=lambda shape: list(range(shape.batch_size)),
        compare=lambda shape, logits: relative_error(logits, REFERENCE[: shape.batch_size], "softmax"),
        run=run,
    )
    assert measure_error(state) == pytest.approx(0.5)
    assert ran == [[0, 1, 2, 3]] * 2
