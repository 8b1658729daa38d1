"""What image and text classifiers share: their labels, and how their logits are read and compared."""

from __future__ import annotations

import torch

from handlers.kit_handler import KitHandler
from handlers.shared.definition import Definition
from handlers.shared.outputs import activate, relative_error


class Classifier(KitHandler):
    """A model with logits, float32 (N, outputs)."""

    activation: str
    """How the outputs are read: one of outputs.SOFTMAX, SIGMOID, NONE."""

    def configure(self, definition: Definition) -> None:
        self.labels = definition.labels
        self.activation = definition.model["activation"]
        super().configure(definition)

    def compare(self, got: torch.Tensor, expected: torch.Tensor) -> float:
        """Of logits that a softmax reads without what is common to all: it changes no probability."""
        return relative_error(got, expected, self.activation)

    def score(self, output: torch.Tensor) -> torch.Tensor:
        """Probabilities in the order of the labels, or the values themselves where `activation` is NONE."""
        return activate(output, self.activation)
