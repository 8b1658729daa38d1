"""Finds whether a text model can be served packed (handlers/shared/packing.py), and proves it on examples.

It can be when its attention takes a mask and its positions ids, and nothing else looks at a text's
neighbours: BERT's and RoBERTa's families can; relative positions (DeBERTa, MPNet), convolutions over tokens
(ConvBERT) or positions that are not an argument (DistilBERT in transformers 4.57) cannot.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from handlers.shared.outputs import find_worst, relative_error
from handlers.shared.packing import pack_rows
from models.errors import BuildError

LENGTHS = (13, 4, 9, 90, 24, 3)
"""Of the texts in the row that proves it, in tokens."""
TOLERANCE = 2e-4
"""Relative error of centred logits; FP32's rounding gave 1e-6, a neighbour that leaks 6e-3 or more (random
weights)."""


@dataclass(frozen=True, kw_only=True)
class Forms:
    """One model of transformers, in eval mode, in the forms that its handler serves it in."""

    model: torch.nn.Module
    packed: torch.nn.Module | None
    """PackedLogits or PackedEmbeddings; None where each token has an answer."""
    padded: torch.nn.Module
    """LogitsOnly or Embeddings."""
    alone: Callable[[Sequence[int]], torch.Tensor]
    """The output for one text, (1, …), by transformers' own forward."""
    activation: str
    padding_id: int
    types: bool
    """Whether token types are given."""

    def measure_error(self, got: torch.Tensor, expected: torch.Tensor) -> float:
        """Relative, of the worst output."""
        return relative_error(got, expected, self.activation)


def describe_packing(forms: Forms, *, vocabulary: int, longest: int) -> dict[str, Any]:
    """`first_position` of a text's first token, or why packing is `impossible`; the model takes at most
    `longest` tokens."""
    obstacle = _find_obstacle(forms)
    if obstacle or forms.packed is None:
        return {"impossible": obstacle}
    _, first_position = find_positions(forms.model)
    texts = _draw_texts(longest, vocabulary=vocabulary)
    try:
        width = sum(map(len, texts)) + 1
        inputs = pack_rows([texts], width=width, padding_id=forms.padding_id, first_position=first_position)
        with torch.no_grad():
            packed = forms.packed(*inputs, *_make_types(inputs[0], forms))[: len(texts)]
        worst = forms.measure_error(packed, torch.cat([forms.alone(text) for text in texts]))
    except Exception as error:  # whatever another architecture makes of such inputs
        return {"impossible": f"its parts do not take packed rows ({type(error).__name__}: {error})"[:300]}
    if not worst <= TOLERANCE:
        return {"impossible": f"texts in one row change each other's outputs (relative error {worst:.2g})"}
    return {"first_position": first_position}


def _make_types(ids: torch.Tensor, forms: Forms) -> tuple[torch.Tensor, ...]:
    """Of single texts."""
    return (torch.zeros_like(ids),) if forms.types else ()


def _find_obstacle(forms: Forms) -> str:
    base = forms.model.base_model
    if forms.packed is None:
        return "each token has an answer of its own"
    parameters = inspect.signature(base.forward).parameters
    missing = [name for name in ("attention_mask", "position_ids") if name not in parameters]
    if missing:
        return f"{type(base).__name__} takes no {' and no '.join(missing)}"
    if base is not forms.model and not hasattr(forms.model, "classifier"):
        return f"{type(forms.model).__name__} has no classifier to be given a text's first token"
    return ""


def find_positions(model: torch.nn.Module) -> tuple[torch.nn.Embedding | None, int]:
    """The table of learnt positions, if there is one, and the first position of a text: 0, or in RoBERTa's
    family the one after the padding's."""
    tables = [
        module
        for name, module in model.base_model.named_modules()
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding)
    ]
    table = tables[0] if tables else None
    padding = table.padding_idx if table else None
    return table, 0 if padding is None else padding + 1


def check_padding(forms: Forms, texts: Sequence[Sequence[int]]) -> None:
    """BuildError where the output for a text, given as its token ids, changes with the padding after it."""
    width = max(map(len, texts)) + 1
    ids = torch.full((len(texts), width), forms.padding_id)
    mask = torch.zeros_like(ids)
    for number, text in enumerate(texts):
        ids[number, : len(text)] = torch.tensor(text)
        mask[number, : len(text)] = 1
    name = type(forms.model).__name__
    try:
        with torch.no_grad():
            padded = forms.padded(ids, mask, *_make_types(ids, forms))
    except Exception as error:  # GPT-2's family without pad_token_id in its config, for one
        raise BuildError(
            f"{name} takes no batch of padded texts: {type(error).__name__}: {error}"[:300]
        ) from error
    own = [row[: len(text)] if row.dim() > 1 else row for row, text in zip(padded, texts, strict=True)]
    pairs = zip(own, (forms.alone(text)[0] for text in texts), strict=True)
    worst = find_worst([forms.measure_error(got, expected) for got, expected in pairs])
    if not worst <= TOLERANCE:
        raise BuildError(
            f"{name} is not served: padding after a text changes its answer (relative error {worst:.2g}), "
            "and texts of several lengths are computed together"
        )


def _draw_texts(longest: int, *, vocabulary: int) -> list[list[int]]:
    """Token ids of as many texts as a row of the longest text holds."""
    chance, left, texts = torch.Generator().manual_seed(0), longest - 1, []
    for length in LENGTHS:
        texts.append(torch.randint(vocabulary, (min(length, left),), generator=chance).tolist())
        left -= len(texts[-1])
    return [text for text in texts if text]
