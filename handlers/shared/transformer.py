"""Builds a transformers sequence classifier from the archive's config.json and safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from handlers.shared.definition import Definition
from handlers.shared.weights import load_weights


class LogitsOnly(torch.nn.Module):
    """forward(input_ids, attention_mask), int64 (N, length) each → logits, float (N, classes)."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        # A tuple: TorchScript cannot trace transformers' output classes.
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


class PackedLogits(torch.nn.Module):
    """forward(input_ids, positions, segments, starts), int64 as of packing.pack_rows → logits, float
    (len(starts), classes), for the models that models/packing.py has found to be exact this way."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        # (rows, from, to), from which transformers makes what it adds to the scores.
        same_text = (segments[:, :, None] == segments[:, None, :]).long()
        hidden = self.model.base_model(
            input_ids=input_ids, attention_mask=same_text, position_ids=positions, return_dict=False
        )[0]
        return self._classify(hidden.flatten(0, 1).index_select(0, starts)[:, None])

    def _classify(self, first: torch.Tensor) -> torch.Tensor:
        """(texts, 1, hidden) → (texts, classes): BERT's head takes the pooler's output, RoBERTa's the hidden
        states and picks the first token itself."""
        pooler = getattr(self.model.base_model, "pooler", None)
        return self.model.classifier(first if pooler is None else pooler(first))


def answer_alone(model: torch.nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Logits, (1, classes), of one text by transformers' own forward: unpacked and without padding."""
    tokens = torch.tensor([list(ids)])
    with torch.no_grad():
        logits: torch.Tensor = model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), return_dict=False
        )[0]
    return logits


def leave_torchao() -> None:
    """Before a model is imported: transformers would take torchao along where a build's tools have it."""
    from transformers.utils import import_utils

    import_utils._torchao_available = False


def build_sequence_classifier(definition: Definition, *, attention: str, packed: bool) -> torch.nn.Module:
    """The eager model in eval mode. `attention` is transformers' implementation name: `eager` is the
    pattern that backends fuse."""
    leave_torchao()
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from transformers.modeling_utils import no_init_weights
    from transformers.utils import logging

    # It warns of a training loss that no worker computes.
    logging.set_verbosity_error()
    raw = json.loads((definition.directory / "config.json").read_text(encoding="utf-8"))
    config = AutoConfig.for_model(**raw)
    # Random values would be drawn for 1.5 s, and overwritten: the archive's weights must fill every key.
    with no_init_weights():
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    wrap = PackedLogits if packed else LogitsOnly
    return wrap(load_weights(model, definition)).eval()
