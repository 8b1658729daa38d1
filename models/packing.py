"""Finds whether a text model can be served packed (handlers/shared/packing.py), and proves it on examples.

It can be when its attention takes a mask and its positions ids, and nothing else looks at a text's
neighbours: BERT's and RoBERTa's families can; relative positions (DeBERTa, MPNet), convolutions over tokens
(ConvBERT) or positions that are not an argument (DistilBERT in transformers 4.57) cannot.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from handlers.shared.packing import pack_rows
from handlers.shared.state import relative_error
from handlers.shared.transformer import PackedLogits, answer_alone

LENGTHS = (13, 4, 9, 90, 24, 3)
"""Of the texts in the row that proves it, in tokens."""
TOLERANCE = 2e-4
"""Relative error of centred logits; FP32's rounding gave 1e-6, a neighbour that leaks 6e-3 or more (random
weights)."""


def describe_packing(
    model: torch.nn.Module, *, vocabulary: int, padding_id: int, longest: int
) -> dict[str, Any]:
    """`first_position` of a text's first token, or why packing is `impossible`; `model` is transformers' own,
    in eval mode, and takes at most `longest` tokens."""
    obstacle = _find_obstacle(model)
    if obstacle:
        return {"impossible": obstacle}
    first_position = _find_first_position(model)
    texts = _draw_texts(longest, vocabulary=vocabulary, padding_id=padding_id)
    try:
        worst = _measure(model, texts, padding_id=padding_id, first_position=first_position)
    except Exception as error:  # whatever another architecture makes of such inputs
        return {"impossible": f"its parts do not take packed rows ({type(error).__name__}: {error})"[:300]}
    if not worst <= TOLERANCE:
        return {"impossible": f"texts in one row change each other's logits (relative error {worst:.2g})"}
    return {"first_position": first_position}


def _find_obstacle(model: torch.nn.Module) -> str | None:
    base = model.base_model
    parameters = inspect.signature(base.forward).parameters
    missing = [name for name in ("attention_mask", "position_ids") if name not in parameters]
    if missing:
        return f"{type(base).__name__} takes no {' and no '.join(missing)}"
    if not hasattr(model, "classifier"):
        return f"{type(model).__name__} has no classifier to be given a text's first token"
    return None


def _find_first_position(model: torch.nn.Module) -> int:
    """0; in RoBERTa's family positions count from the padding's on."""
    tables = [
        module
        for name, module in model.base_model.named_modules()
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding)
    ]
    padding = tables[0].padding_idx if tables else None
    return 0 if padding is None else padding + 1


def _draw_texts(longest: int, *, vocabulary: int, padding_id: int) -> list[list[int]]:
    """Token ids of as many texts as a row of the longest text holds."""
    chance, left, texts = torch.Generator().manual_seed(0), longest - 1, []
    for length in LENGTHS:
        ids = torch.randint(vocabulary, (min(length, left),), generator=chance)
        # RoBERTa's own forward counts no position for the padding token.
        texts.append(torch.where(ids == padding_id, (padding_id + 1) % vocabulary, ids).tolist())
        left -= len(ids)
    return [text for text in texts if text]


def _measure(
    model: torch.nn.Module, texts: Sequence[Sequence[int]], *, padding_id: int, first_position: int
) -> float:
    """Relative error of texts in one row against transformers' own forward of each alone."""
    width = sum(map(len, texts)) + 1
    inputs = pack_rows([texts], width=width, padding_id=padding_id, first_position=first_position)
    with torch.no_grad():
        packed = PackedLogits(model)(*inputs)[: len(texts)]
    alone = torch.cat([answer_alone(model, text) for text in texts])
    return relative_error(packed, alone)
