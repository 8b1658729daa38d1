"""What the load steps hand on to each other, and what of it stays: the model as it serves."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch

from handlers.shared.classifier import Classifier
from handlers.shared.definition import PrecisionRecipe
from handlers.shared.options import LoadOptions
from handlers.shared.precision import precision_context
from handlers.shared.shapes import Shape
from handlers.shared.work import Work

EXAMPLES = 4
"""Different samples used for tracing, warm-up and the self-check; at least 2."""
TRACE_ROWS = 2
"""Rows of the traced example: more than one, so that no dimension is taken for a constant 1."""


@dataclass(kw_only=True)
class LoadedModel:
    """The model, and what answering needs and describe says of it."""

    classifier: Classifier
    options: LoadOptions
    model: torch.nn.Module = field(default_factory=torch.nn.Identity)
    graph_kind: str = "eager"
    channels_last: bool = False
    work: Work = field(default_factory=Work)
    """What answering costs; without bounds until it is timed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What describe answers beyond the step records."""

    def run(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Logits as float32, through whatever the model has become."""
        with precision_context(self.options.precision):
            return self.model(*inputs).float()


@dataclass(kw_only=True)
class LoadState(LoadedModel):
    """A model on its way, with its examples and what it must answer to them."""

    examples: list[Any] = field(default_factory=list)
    """EXAMPLES samples of all lengths."""
    reference: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Logits of the eager FP32 model, float32 (EXAMPLES, classes)."""
    warmed: dict[Shape, torch.Tensor] = field(default_factory=dict)
    """What the finished model answered for each shape, float32 (rows, classes)."""

    @property
    def recipe(self) -> PrecisionRecipe:
        return self.classifier.definition.precisions[self.options.precision]

    @property
    def trace_shape(self) -> Shape:
        """A middling length: the graph holds for all, and tracing at the longest takes seconds."""
        lengths = self.classifier.grid.lengths
        return Shape(batch_size=TRACE_ROWS, length=lengths[len(lengths) // 2])

    def list_rows(self, shape: Shape) -> list[int]:
        """Which example stands in each row: those that fit, the longest first, again and again."""
        fitting = [
            number
            for number, sample in enumerate(self.examples)
            if self.classifier.sample_length(sample) <= shape.length
        ][::-1]
        return [fitting[row % len(fitting)] for row in range(shape.batch_size)]

    def inputs(self, shape: Shape) -> tuple[torch.Tensor, ...]:
        """Example inputs of one shape, the caller's to keep."""
        rows = [self.examples[number] for number in self.list_rows(shape)]
        inputs = self.classifier.to_inputs(rows, length=shape.length, channels_last=self.channels_last)
        return tuple(tensor.clone() for tensor in inputs)

    def finish(self) -> LoadedModel:
        """Without what only the load needed."""
        return LoadedModel(**{one.name: getattr(self, one.name) for one in fields(LoadedModel)})
