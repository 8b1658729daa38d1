"""A runtime around a model of one line, for what does not depend on the model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from handlers.shared.bodies import as_bytes
from handlers.shared.classifier import Classifier, Request
from handlers.shared.errors import RequestError
from handlers.shared.runtime import ModelRuntime
from handlers.shared.shapes import ShapeGrid
from handlers.shared.work import Work

LENGTHS = (16, 32, 64, 128, 256, 512)


class StubClassifier(Classifier):
    """Takes a body of numbers, the lengths of its texts; `planted` raises in the stage it names."""

    convolutional = False
    libraries = ()
    labels = ("no", "yes")
    activation = "softmax"

    def __init__(self) -> None:
        self.definition = SimpleNamespace(name="stub")
        self.layout = ShapeGrid(batch_sizes=(1, 2, 4, 8, 16), lengths=LENGTHS, tokens_per_run=512)
        self.planted: Callable[[str, Any], None] = lambda stage, value: None

    def build_model(self) -> torch.nn.Module:
        raise NotImplementedError

    def read_request(self, body: Any) -> Request:
        data = as_bytes(body) or b""
        self.planted("read", data)
        if not data.strip():
            raise RequestError("the body is empty")
        return Request(inputs=[int(number) for number in data.split()], many=b" " in data)

    def encode(self, inputs: Any) -> list[int]:
        for one in inputs:
            self.planted("encode", one)
        return list(inputs)

    def example_samples(self, count: int) -> list[int]:
        return list(range(1, count + 1))

    def sample_length(self, sample: int) -> int:
        return sample

    def to_inputs(self, rows: Any, *, length: int, channels_last: bool) -> tuple[torch.Tensor, ...]:
        return (torch.tensor([sample for (sample,) in rows], dtype=torch.float32),)

    def to_answer(self, probabilities: np.ndarray, sample: int) -> dict[str, Any]:
        self.planted("to_answer", sample)
        return {"tokens": sample, "yes": float(probabilities[1])}


def make_runtime(classifier: StubClassifier, work: Work | None = None) -> ModelRuntime:
    """A runtime that has loaded; 13 tokens are a number that the model has none for."""

    def run(inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        for one in inputs[0].tolist():
            classifier.planted("model", int(one))
        logits = inputs[0] / 512
        logits[inputs[0] == 13] = float("nan")
        return torch.stack([torch.zeros_like(logits), logits], dim=1)

    loaded: Any = SimpleNamespace(
        classifier=classifier,
        options=SimpleNamespace(off=frozenset()),
        channels_last=False,
        work=work or Work(),
        run=run,
        to_inputs=lambda run, samples: classifier.to_inputs(
            [[samples[position] for position in row] for row in run.rows], length=0, channels_last=False
        ),
    )
    return ModelRuntime(loaded, [], 0.0)
