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

from handlers.shared.outputs import relative_error
from handlers.shared.packing import pack_rows
from handlers.shared.transformer import LogitsOnly, PackedLogits, answer_alone
from models.errors import BuildError

LENGTHS = (13, 4, 9, 90, 24, 3)
"""Of the texts in the row that proves it, in tokens."""
TOLERANCE = 2e-4
"""Relative error of centred logits; FP32's rounding gave 1e-6, a neighbour that leaks 6e-3 or more (random
weights)."""


def describe_packing(
    model: torch.nn.Module, *, vocabulary: int, padding_id: int, longest: int, activation: str
) -> dict[str, Any]:
    """`first_position` of a text's first token, or why packing is `impossible`; `model` is transformers' own,
    in eval mode, and takes at most `longest` tokens."""
    obstacle = _find_obstacle(model)
    if obstacle:
        return {"impossible": obstacle}
    _, first_position = find_positions(model)
    texts = _draw_texts(longest, vocabulary=vocabulary)
    try:
        packed = _answer_packed(model, texts, padding_id=padding_id, first_position=first_position)
        worst = relative_error(packed, _answer_alone(model, texts), activation)
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


def check_padding(
    model: torch.nn.Module, texts: Sequence[Sequence[int]], *, padding_id: int, activation: str
) -> None:
    """BuildError where the answer to a text, given as its token ids, changes with the padding after it."""
    width = max(map(len, texts)) + 1
    ids = torch.full((len(texts), width), padding_id)
    mask = torch.zeros_like(ids)
    for number, text in enumerate(texts):
        ids[number, : len(text)] = torch.tensor(text)
        mask[number, : len(text)] = 1
    name = type(model).__name__
    try:
        with torch.no_grad():
            padded = LogitsOnly(model)(ids, mask)
    except Exception as error:  # GPT-2's family without pad_token_id in its config, for one
        raise BuildError(
            f"{name} takes no batch of padded texts: {type(error).__name__}: {error}"[:300]
        ) from error
    worst = relative_error(padded, _answer_alone(model, texts), activation)
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


def _answer_alone(model: torch.nn.Module, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits, (texts, outputs), by transformers' own forward of each alone."""
    return torch.cat([answer_alone(model, text) for text in texts])


def _answer_packed(
    model: torch.nn.Module, texts: Sequence[Sequence[int]], *, padding_id: int, first_position: int
) -> torch.Tensor:
    """The same from one row of all of them."""
    width = sum(map(len, texts)) + 1
    inputs = pack_rows([texts], width=width, padding_id=padding_id, first_position=first_position)
    with torch.no_grad():
        return PackedLogits(model)(*inputs)[: len(texts)]
