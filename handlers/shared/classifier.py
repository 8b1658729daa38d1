"""What image and text classifiers share: their labels, and how their logits are read and compared."""

from __future__ import annotations

import torch

from handlers.shared.outputs import activate, relative_error
from handlers.task import Task


class Classifier(Task):
    """A mixin for a handler whose model has logits, float32 (N, outputs)."""

    @property
    def labels(self) -> tuple[str, ...]:
        """In the order of the outputs."""
        return self.definition.labels

    @property
    def activation(self) -> str:
        """How the outputs are read: one of outputs.SOFTMAX, SIGMOID, NONE."""
        return str(self.definition.model["activation"])

    def compare(self, got: torch.Tensor, expected: torch.Tensor) -> float:
        """Of logits that a softmax reads without what is common to all: it changes no probability."""
        return relative_error(got, expected, self.activation)

    def score(self, output: torch.Tensor) -> torch.Tensor:
        """Probabilities in the order of the labels, or the values themselves where `activation` is NONE."""
        return activate(output, self.activation)
