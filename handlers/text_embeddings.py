"""Serves an embedding model of transformers, as sentence-transformers': text in, one vector out."""

from __future__ import annotations

from typing import Any

import torch

from handlers.shared.texts import Tokens
from handlers.shared.transformer import Embeddings, PackedEmbeddings
from handlers.text import TextHandler

DIGITS = 7
"""Significant ones in an answer: float32 has no more."""


class TextEmbeddings(TextHandler):
    """`model.pooling` is `mean`, of a text's own tokens, or `cls`, its first one; with `model.normalize` each
    vector has length 1."""

    def load_model(self) -> torch.nn.Module:
        kind = PackedEmbeddings if self.packed else Embeddings
        settings = self.definition.model
        return kind(
            self.read_model("AutoModel"), pooling=settings["pooling"], normalize=settings["normalize"]
        )

    def answer_alone(self, model: torch.nn.Module, sample: Tokens) -> torch.Tensor:
        """(1, dimension), pooled of the hidden states of one text alone."""
        hidden = super().answer_alone(model, sample)
        pooled: torch.Tensor = model.pool(hidden, torch.ones(hidden.shape[:2]))
        return pooled

    def encode(self, output: torch.Tensor, sample: Tokens) -> dict[str, Any]:
        vector = [float(f"{value:.{DIGITS}g}") for value in output.tolist()]
        return {"embedding": vector, **sample.describe_cut()}
