"""What the load steps hand on to each other, and what of it stays: the model as it serves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from handlers.engines import ENGINES, name_variant
from handlers.engines.engine import Engine
from handlers.shared.classifier import Classifier
from handlers.shared.definition import PrecisionRecipe
from handlers.shared.options import LoadOptions
from handlers.shared.outputs import relative_error
from handlers.shared.shapes import Run, Shape
from handlers.shared.work import Work

EXAMPLES = 4
"""Different samples used for tracing, warm-up and the self-check; at least 2."""


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

    @property
    def engine(self) -> Engine:
        """What computes it."""
        return ENGINES[self.options.engine]

    @property
    def accuracy(self) -> dict[str, Any] | None:
        """What the gate saw of it; None for what it does not judge."""
        variant = name_variant(self.options.engine, self.options.precision)
        return self.classifier.definition.accuracy.get(variant)

    def run(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Logits as float32, through whatever the model has become."""
        with self.engine.context(self.options.precision):
            return self.model(*inputs).float()

    def to_inputs(self, run: Run, samples: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The model's inputs for one run; valid until the next call."""
        rows = [[samples[position] for position in row] for row in run.rows]
        return self.classifier.to_inputs(rows, length=run.length, channels_last=self.channels_last)


@dataclass(kw_only=True)
class LoadState(LoadedModel):
    """A model on its way, with its examples and what it must answer to them."""

    cpus: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    """This process's; Intel's OpenMP will bind the thread that starts its first team to one of them."""
    examples: list[Any] = field(default_factory=list)
    """EXAMPLES samples of all lengths."""
    reference: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Logits of the eager FP32 model, float32 (EXAMPLES, classes)."""
    warmed: dict[Shape, torch.Tensor] = field(default_factory=dict)
    """What the finished model answered for the examples in each shape, float32 (samples, classes)."""

    @property
    def recipe(self) -> PrecisionRecipe:
        return self.classifier.definition.precisions[self.options.precision]

    @property
    def engine_recipe(self) -> Mapping[str, Any]:
        """What the model's definition says to this engine alone."""
        return self.recipe.engines.get(self.options.engine, {})

    def arrange(self, shape: Shape) -> Run:
        """Which examples stand where in a run of one shape."""
        needed = [self.classifier.sample_length(sample) for sample in self.examples]
        return self.classifier.layout.arrange(shape, needed)

    def inputs(self, shape: Shape) -> tuple[torch.Tensor, ...]:
        """Example inputs of one shape, the caller's to keep."""
        return tuple(tensor.clone() for tensor in self.to_inputs(self.arrange(shape), self.examples))

    def compare(self, shape: Shape, logits: torch.Tensor) -> float:
        """The largest relative error of a run of one shape's examples against FP32 eager, each alone."""
        samples = list(self.arrange(shape).samples)
        got, expected = logits[: len(samples)], self.reference[samples]
        return relative_error(got, expected, self.classifier.activation)

    def finish(self) -> LoadedModel:
        """Without what only the load needed."""
        return LoadedModel(**{one.name: getattr(self, one.name) for one in fields(LoadedModel)})
