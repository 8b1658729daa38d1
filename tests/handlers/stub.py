"""A handler of a model of one line, for what does not depend on the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from handlers.kit_handler import KitHandler
from handlers.request import Request
from handlers.shared.errors import BadRequest
from handlers.shared.shapes import ShapeGrid
from handlers.shared.work import Work

LENGTHS = (16, 32, 64, 128, 256, 512)


class StubHandler(KitHandler):
    """Takes a body of numbers, the lengths of its texts; `planted` raises in the stage it names. The model
    has no answer for 13."""

    def __init__(self) -> None:
        super().__init__()
        self.definition: Any = SimpleNamespace(name="stub")
        self.layout = ShapeGrid(batch_sizes=(1, 2, 4, 8, 16), lengths=LENGTHS, tokens_per_run=512)
        self.planted: Callable[[str, Any], None] = lambda stage, value: None

    def load_model(self) -> torch.nn.Module:
        raise NotImplementedError

    def decode(self, request: Request) -> int | list[int]:
        data = request.data or b""
        self.planted("decode", data)
        if not data.strip():
            raise BadRequest(400, "the body is empty")
        numbers = [int(number) for number in data.split()]
        return numbers if b" " in data else numbers[0]

    def make_examples(self, count: int) -> list[int]:
        return list(range(1, count + 1))

    def measure(self, sample: int) -> int:
        return sample

    def collate(self, samples: Sequence[int]) -> torch.Tensor:
        for one in samples:
            self.planted("collate", one)
        return torch.tensor(samples, dtype=torch.float32)

    def split(self, outputs: torch.Tensor, samples: Sequence[int]) -> list[torch.Tensor]:
        for one in samples:
            self.planted("split", one)
        return super().split(outputs, samples)

    def encode(self, output: torch.Tensor, sample: int) -> dict[str, Any]:
        self.planted("encode", sample)
        return {"tokens": sample, "half": float(output)}


def take_stub(handler: StubHandler, work: Work | None = None) -> StubHandler:
    """As if it had loaded."""

    def run(inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        for one in inputs[0].tolist():
            handler.planted("model", int(one))
        return torch.where(inputs[0] == 13, float("nan"), inputs[0] / 2)

    loaded: Any = SimpleNamespace(
        model=torch.nn.Identity(),
        work=work or Work(),
        run=run,
        to_inputs=lambda run, samples: handler.to_inputs(
            [[samples[position] for position in row] for row in run.rows],
            length=run.length,
            channels_last=False,
        ),
    )
    handler.take(loaded)
    return handler
