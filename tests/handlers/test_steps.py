"""A step that was asked for and fails, fails the load; nothing is passed over in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from handlers.backends.loader import open_loader
from handlers.image_classifier import ImageClassifier
from handlers.shared import steps
from handlers.shared.outputs import relative_error
from tests.handlers.context import FakeContext

EAGER = steps.list_steps(open_loader("eager"))
NAMES = [step.name for step in EAGER]


def load(directory: Path) -> ImageClassifier:
    handler = ImageClassifier()
    handler.initialize(FakeContext(directory))
    return handler


def read_line(caplog) -> dict:
    return json.loads(caplog.records[-1].getMessage())


@pytest.mark.parametrize("name", NAMES)
def test_each_failing_step_fails_the_load_and_is_named(tiny_image, caplog, monkeypatch, name):
    def explode(state):
        raise ValueError("planted")

    broken = tuple(
        steps.Step(name=step.name, run=explode if step.name == name else step.run, skip=step.skip)
        for step in EAGER
    )
    monkeypatch.setattr(steps, "list_steps", lambda backend: broken)
    with pytest.raises(RuntimeError, match="planted"):
        load(tiny_image)
    line = read_line(caplog)
    assert (line["cpu_kit"], line["step"], line["cause"]) == ("load_failed", name, "ValueError: planted")


def test_a_model_that_answers_differently_after_optimising_is_rejected(tiny_image, caplog, monkeypatch):
    class Noisy(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model(images) * 1.01

    def wrong(state):
        state.model = Noisy(state.model).eval()

    broken = list(EAGER)
    broken.insert(2, steps.Step(name="sabotage", run=wrong))
    monkeypatch.setattr(steps, "list_steps", lambda backend: broken)
    with pytest.raises(
        RuntimeError, match=r"differs from eager FP32: relative error 0\.01, tolerance 0\.001"
    ):
        load(tiny_image)
    assert read_line(caplog)["step"] == "self_check"


def test_relative_error_is_the_worst_rows_and_ignores_what_softmax_ignores():
    expected = torch.tensor([[-3.0, 3.0], [-5.0, 5.0]])
    got = torch.tensor([[-3.3, 3.3], [95.0, 105.0]])
    assert relative_error(got, expected, "softmax") == pytest.approx(0.1)
    assert relative_error(got, expected, "sigmoid") > 1  # where a constant added to a logit changes the score


@pytest.mark.parametrize("activation", ["sigmoid", "none"])
def test_a_wrong_single_output_is_an_error(activation):
    # A row of one output that is centred is 0, whatever the model answers.
    assert relative_error(torch.tensor([[9.0]]), torch.tensor([[1.0]]), activation) == pytest.approx(8.0)


def test_nan_never_passes_the_self_check():
    assert not relative_error(torch.tensor([[float("nan")]]), torch.tensor([[1.0]]), "none") <= 1.0
