"""Builds a transformers sequence classifier from the archive's config.json and safetensors."""

from __future__ import annotations

import json

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


def build_sequence_classifier(definition: Definition, *, attention: str) -> torch.nn.Module:
    """The eager model in eval mode. `attention` is transformers' implementation name: `eager` is the
    pattern that IPEX fuses (ipex::mha_scores_calc)."""
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
    return LogitsOnly(load_weights(model, definition)).eval()
