"""Builds transformers' models from the archive's config.json, and feeds them padded or packed rows.

Token types, int64 as the ids, are the last input where a model is given them; without, there is none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from handlers.shared.errors import LoadError

MEAN, CLS = "mean", "cls"
"""How an embedding is pooled: from all of a text's own tokens, or its first one."""


def run(model: torch.nn.Module, **inputs: Tensor | None) -> Tensor:
    """The first output of a model of transformers, without the inputs that are None."""
    given = {name: one for name, one in inputs.items() if one is not None}
    # A tuple: TorchScript cannot trace transformers' output classes.
    output: Tensor = model(**given, return_dict=False)[0]
    return output


class LogitsOnly(torch.nn.Module):
    """forward(input_ids, attention_mask), int64 (N, length) each → the model's first output, float: logits
    (N, classes), or (N, length, classes) of a model that classifies tokens."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, types: Tensor | None = None) -> Tensor:
        return run(self.model, input_ids=input_ids, attention_mask=attention_mask, token_type_ids=types)


class PackedLogits(torch.nn.Module):
    """forward(input_ids, positions, segments, starts), int64 as of packing.pack_rows → logits, float
    (len(starts), classes), for the models that models/packing.py has found to be exact this way."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        segments: Tensor,
        starts: Tensor,
        types: Tensor | None = None,
    ) -> Tensor:
        hidden = run_packed(self.model, input_ids, positions, segments, types)
        return self._classify(hidden.index_select(0, starts)[:, None])

    def _classify(self, first: Tensor) -> Tensor:
        """(texts, 1, hidden) → (texts, classes): BERT's head takes the pooler's output, RoBERTa's the hidden
        states and picks the first token itself."""
        pooler = getattr(self.model.base_model, "pooler", None)
        return self.model.classifier(first if pooler is None else pooler(first))


def run_packed(
    model: torch.nn.Module, ids: Tensor, positions: Tensor, segments: Tensor, types: Tensor | None
) -> Tensor:
    """Hidden states, (rows × width, hidden), of rows as of packing.pack_rows."""
    # (rows, from, to), from which transformers makes what it adds to the scores.
    same_text = (segments[:, :, None] == segments[:, None, :]).long()
    base = model.base_model
    hidden = run(base, input_ids=ids, attention_mask=same_text, position_ids=positions, token_type_ids=types)
    return hidden.flatten(0, 1)


class _Embeddings(torch.nn.Module):
    """A base model, and what sentence-transformers' modules Pooling and Normalize make of its output."""

    def __init__(self, model: torch.nn.Module, *, pooling: str, normalize: bool) -> None:
        super().__init__()
        if pooling not in (MEAN, CLS):
            raise LoadError(f"model.pooling must be {MEAN} or {CLS}: got {pooling}", fix="change model.yaml")
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(N, length, hidden) and (N, length), 1 for a text's own tokens → (N, hidden)."""
        return self.finish(hidden[:, 0] if self.pooling == CLS else average(hidden, mask[:, None])[:, 0])

    def finish(self, pooled: Tensor) -> Tensor:
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


class Embeddings(_Embeddings):
    """forward(input_ids, attention_mask), as LogitsOnly → embeddings, float (N, hidden)."""

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        return self.pool(run(self.model, input_ids=ids, attention_mask=mask, token_type_ids=types), mask)


class PackedEmbeddings(_Embeddings):
    """forward(input_ids, positions, segments, starts), as PackedLogits → embeddings, float (len(starts),
    hidden)."""

    def forward(
        self, ids: Tensor, positions: Tensor, segments: Tensor, starts: Tensor, types: Tensor | None = None
    ) -> Tensor:
        hidden = run_packed(self.model, ids, positions, segments, types)
        if self.pooling == CLS:
            return self.finish(hidden.index_select(0, starts))
        # Segments begin anew in each row; here each text has its own number, and each row's padding.
        rows, width = segments.shape
        texts = (segments + (width + 1) * torch.arange(rows)[:, None]).flatten()
        own = texts.index_select(0, starts)[:, None] == texts
        # One row of all texts: as two matrices the backends would take it for a product by weights.
        return self.finish(average(hidden[None], own[None])[0])


def average(hidden: Tensor, own: Tensor) -> Tensor:
    """(N, tokens, hidden) → (N, texts, hidden): the mean of the tokens that `own`, (N, texts, tokens), marks
    as a text's."""
    weights = own.float()
    return weights @ hidden.float() / weights.sum(-1, keepdim=True)


def answer_alone(model: torch.nn.Module, ids: Sequence[int], token_types: Sequence[int] = ()) -> Tensor:
    """The first output, (1, …), of one text by transformers' own forward: unpacked and without padding."""
    tokens = torch.tensor([list(ids)])
    types = torch.tensor([list(token_types)]) if token_types else None
    with torch.no_grad():
        return run(model, input_ids=tokens, attention_mask=torch.ones_like(tokens), token_type_ids=types)


def leave_torchao() -> None:
    """Before a model is imported: transformers would take torchao along where a build's tools have it."""
    from transformers.utils import import_utils

    import_utils._torchao_available = False


def make_model(kind: str, config: Any, *, attention: str) -> torch.nn.Module:
    """transformers' `kind`, e.g. AutoModelForSequenceClassification, in eval mode, with random weights.
    `attention` is transformers' implementation name: `eager` is the pattern that backends fuse."""
    leave_torchao()
    import transformers

    model: torch.nn.Module = getattr(transformers, kind).from_config(config, attn_implementation=attention)
    return model.eval()


def read_model(kind: str, directory: Path, *, attention: str) -> torch.nn.Module:
    """As `make_model`, of the archive's config.json, and without values yet: weights must fill every key."""
    leave_torchao()
    from transformers import AutoConfig
    from transformers.modeling_utils import no_init_weights
    from transformers.utils import logging

    # It warns of a training loss that no worker computes.
    logging.set_verbosity_error()
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    # Random values would be drawn for 1.5 s, and overwritten.
    with no_init_weights():
        return make_model(kind, AutoConfig.for_model(**raw), attention=attention)
