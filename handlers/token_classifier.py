"""Serves a token classifier of transformers (named entities, parts of speech): text in, its entities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from handlers.shared.outputs import SOFTMAX, relative_error
from handlers.shared.texts import Tokens
from handlers.shared.transformer import LogitsOnly
from handlers.text import TextHandler

OUTSIDE = "O"
"""The label of what is no entity."""


class TokenClassifier(TextHandler):
    """Tokens of one entity are put together as by transformers' aggregation_strategy="simple"."""

    offsets = True

    @property
    def packing(self) -> Mapping[str, Any]:
        return {"impossible": "each token has an answer of its own: a row holds one text"}

    def load_model(self) -> torch.nn.Module:
        return LogitsOnly(self.read_model("AutoModelForTokenClassification"))

    def split(self, outputs: torch.Tensor, samples: Sequence[Tokens]) -> list[torch.Tensor]:
        """float32 (tokens, labels) of each text, without its padding."""
        return [row[: len(sample.ids)] for row, sample in zip(outputs, samples, strict=False)]

    def compare(self, got: torch.Tensor, expected: torch.Tensor) -> float:
        """The worst token's; what is common to all its labels changes no probability."""
        return relative_error(got, expected, SOFTMAX)

    def encode(self, output: torch.Tensor, sample: Tokens) -> dict[str, Any]:
        scores, best = torch.softmax(output, dim=-1).max(dim=-1)
        labels = [self.definition.labels[index] for index in best.tolist()]
        groups: list[list[tuple[str, float, int, int]]] = []
        for label, score, place in zip(labels, scores.tolist(), sample.offsets, strict=True):
            if place is None:
                continue
            # B- begins an entity; I-, or a label without either, goes on with the one before.
            if not groups or label.startswith("B-") or _name(label) != _name(groups[-1][0][0]):
                groups.append([])
            groups[-1].append((label, score, *place))
        entities = [_describe(group, sample) for group in groups]
        found = [entity for entity in entities if entity["entity"] != OUTSIDE]
        return {"entities": found, **sample.describe_cut()}


def _name(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _describe(group: Sequence[tuple[str, float, int, int]], sample: Tokens) -> dict[str, Any]:
    """One entity, with where it stands in the request's text."""
    (label, _, start, _), end = group[0], group[-1][3]
    return {
        "entity": label.split("-", 1)[-1],
        "score": sum(score for _, score, _, _ in group) / len(group),
        "start": sample.skipped + start,
        "end": sample.skipped + end,
        "text": sample.text[start:end],
    }
