"""Serves a sequence classifier of transformers: text in, the label and every class's probability out."""

from __future__ import annotations

from typing import Any

import torch

from handlers.shared.classifier import Classifier
from handlers.shared.outputs import NONE, SIGMOID, YES
from handlers.shared.texts import Tokens
from handlers.shared.transformer import LogitsOnly, PackedLogits
from handlers.text import TextHandler


class TextClassifier(Classifier, TextHandler):
    """Classes of which one is right, labels of which several can be, or values of a regression."""

    def load_model(self) -> torch.nn.Module:
        model = self.read_model("AutoModelForSequenceClassification")
        return PackedLogits(model) if self.packed else LogitsOnly(model)

    def encode(self, output: torch.Tensor, sample: Tokens) -> dict[str, Any]:
        scores = dict(zip(self.labels, self.score(output).tolist(), strict=True))
        answer: dict[str, Any]
        if self.activation == NONE:
            answer = {"scores": scores}
        elif self.activation == SIGMOID:
            answer = {"labels": [one for one, p in scores.items() if p >= YES], "probabilities": scores}
        else:
            answer = {"label": max(scores, key=scores.__getitem__), "probabilities": scores}
        return {**answer, **sample.describe_cut()}
