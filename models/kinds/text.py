"""Prepares BERT-style sequence classifiers: a public checkpoint, seeded random or a user's own folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig
from transformers.utils import logging as transformers_logging

from handlers.shared.outputs import SOFTMAX
from handlers.shared.texts import TextTokenizer
from handlers.shared.transformer import leave_torchao
from models.canary import write_canary_text
from models.definition import ModelDefinition
from models.download import check_file
from models.errors import BuildError
from models.files import find_weights_file, hash_file
from models.folder import (
    PROOF_TEXTS,
    Folder,
    describe_tokenizer,
    limit_tokens,
    prove_reading,
    read_folder,
    shorten,
)
from models.kinds.prepared import Prepared, prefer_pretrained
from models.labels import check_different
from models.packing import check_padding, describe_packing
from models.progress import say
from models.random_weights import SEED, capture_features, find_head, fit_head
from models.repository import fetch_repository
from models.request import WeightsRequest
from models.state import load_state, read_checkpoint
from models.synthetic import SUBJECTS, write_member
from models.vocabulary import NOTE, make_tokenizer

CANARY = "canary.txt"
HEAD_TEXTS = 6
"""Texts of each subject from which random weights' head learns."""
PLAIN_TOKENIZER = {"truncation_side": "right", "split_special_tokens": False}
"""transformers' defaults; see TextTokenizer."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One model with all that must travel with it."""

    model: torch.nn.Module
    config: PretrainedConfig
    labels: list[str]
    tokenizer: Any
    """A `tokenizers.Tokenizer`, or anything with its `save(path)`."""
    padding_id: int
    weights: str
    activation: str = SOFTMAX
    folder: Folder | None = None
    """Where the weights come from a Hugging Face folder."""
    notes: tuple[str, ...] = ()


def prepare(definition: ModelDefinition, request: WeightsRequest, staging: Path) -> Prepared:
    """Fill `staging`; BuildError when the weights asked for cannot be had or do not fit."""
    transformers_logging.set_verbosity_error()
    source = _SOURCES[request.source](definition, request)
    check_different(source.labels, source=source.weights)
    limit = limit_tokens(source.model, source.config, source.folder and source.folder.tokenizer)
    lengths = _fit_lengths(definition.model, limit)
    longest = lengths["token_lengths"][-1]
    tokenizer = describe_tokenizer(source.folder.tokenizer) if source.folder else PLAIN_TOKENIZER
    _save(source, staging)
    reader = TextTokenizer(staging / "tokenizer.json", max_tokens=longest, **tokenizer)
    if source.folder:
        prove_reading(source.folder, source.model, reader, longest=longest)
    packing = describe_packing(
        source.model,
        vocabulary=source.config.vocab_size,
        padding_id=source.padding_id,
        longest=longest,
        activation=source.activation,
    )
    if "impossible" in packing:
        say(f"  {definition.name}: texts cannot share rows: {packing['impossible']}; each is padded instead")
        texts = [tokens.ids for tokens in reader.tokenize(PROOF_TEXTS)]
        check_padding(source.model, texts, padding_id=source.padding_id, activation=source.activation)
    write_canary_text(staging / CANARY)
    return Prepared(
        weights=source.weights,
        notes=(*source.notes, *_note_limit(longest, limit)),
        model={
            **definition.model,
            **lengths,
            "architecture": source.config.model_type,
            "padding_id": source.padding_id,
            "packing": packing,
            "activation": source.activation,
            "tokenizer": tokenizer,
        },
        canary_file=CANARY,
        canary_content_type="text/plain; charset=utf-8",
        distributions=("transformers", "tokenizers", "numpy"),
    )


def _save(source: Source, staging: Path) -> None:
    tensors = {key: value.contiguous().clone() for key, value in source.model.state_dict().items()}
    save_file(tensors, staging / "model.safetensors")
    config = {**source.config.to_dict(), "num_labels": len(source.labels)}
    for volatile in ("id2label", "label2id", "_name_or_path", "transformers_version", "dtype"):
        config.pop(volatile, None)
    (staging / "config.json").write_text(json.dumps(config, sort_keys=True, indent=1), encoding="utf-8")
    (staging / "labels.json").write_text(json.dumps(source.labels, ensure_ascii=False), encoding="utf-8")
    source.tokenizer.save(str(staging / "tokenizer.json"))


def _fit_lengths(model: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    """The definition's token_lengths and row_tokens, none longer than the model takes."""
    lengths = sorted(model["token_lengths"])
    if limit is not None and limit < lengths[-1]:
        lengths = [*(length for length in lengths if length < limit), limit]
    return {
        "token_lengths": lengths,
        "row_tokens": max([one for one in lengths if one <= model["row_tokens"]], default=lengths[0]),
    }


def _note_limit(longest: int, limit: int | None) -> tuple[str, ...]:
    if limit is None or limit <= longest:
        return ()
    return (f"texts are cut at {longest} tokens (token_lengths in model.yaml); the model takes {limit}",)


def _from_random(definition: ModelDefinition, request: WeightsRequest) -> Source:
    torch.manual_seed(SEED)
    config = _make_config(definition, labels=list(definition.labels))
    note = "random weights: the labels mean nothing; give WEIGHTS=pretrained or WEIGHTS=PATH for real answers"
    model, tokenizer = _make_model(config, definition), make_tokenizer()
    _fit_random_head(model, tokenizer, longest=max(definition.model["token_lengths"]))
    return Source(
        model=model,
        config=config,
        labels=list(definition.labels),
        tokenizer=tokenizer,
        padding_id=0,
        weights=f"random (seed {SEED})",
        notes=(note, NOTE),
    )


def _fit_random_head(model: torch.nn.Module, tokenizer: Any, *, longest: int) -> None:
    """Tell the synthetic subjects apart, so that answers have margins as a trained head's."""
    head = find_head(model)
    subjects = list(range(min(len(SUBJECTS), head.out_features))) * HEAD_TEXTS
    texts = [write_member(subject, number) for number, subject in enumerate(subjects)]
    ids = [torch.tensor([one.ids[:longest]]) for one in tokenizer.encode_batch(texts)]

    def run() -> None:
        with torch.no_grad():
            for one in ids:
                model(input_ids=one, attention_mask=torch.ones_like(one))

    fit_head(head, capture_features(head, run), subjects)


def _from_pretrained(definition: ModelDefinition, request: WeightsRequest) -> Source:
    file = find_weights_file(fetch_repository(definition.pretrained))
    digest = check_file(file, sha256=definition.pretrained_sha256)
    weights = f"pretrained ({definition.pretrained}, sha256:{digest})"
    return _from_file(file, definition, request, weights=weights, labels=list(definition.labels))


def _from_auto(definition: ModelDefinition, request: WeightsRequest) -> Source:
    return prefer_pretrained(
        definition, lambda: _from_pretrained(definition, request), lambda: _from_random(definition, request)
    )


def _from_path(definition: ModelDefinition, request: WeightsRequest) -> Source:
    assert request.path is not None
    file = find_weights_file(request.path)
    weights = f"user ({file.name}, sha256:{hash_file(file)[:12]})"
    if not (file.parent / "config.json").is_file():
        raise BuildError(
            f"{file.parent} must be a Hugging Face model folder: it has no config.json; "
            "save the model with model.save_pretrained(DIR) and tokenizer.save_pretrained(DIR)"
        )
    return _from_file(file, definition, request, weights=weights, labels=None)


def _from_file(
    file: Path,
    definition: ModelDefinition,
    request: WeightsRequest,
    *,
    weights: str,
    labels: list[str] | None,
) -> Source:
    """Weights in a Hugging Face folder; `labels` None takes labels.txt or the config's id2label."""
    folder = read_folder(file.parent, labels=labels)
    model = _build_model(folder.config, definition, folder.path)
    state, note = read_checkpoint(file, allow_pickle=request.allow_pickle)
    load_state(model, _drop_old_buffers(state, model), source=f"{folder.path.name}/{file.name}")
    return Source(
        model=model,
        config=folder.config,
        labels=folder.labels,
        tokenizer=folder.tokenizer.backend_tokenizer,
        padding_id=int(folder.tokenizer.pad_token_id),
        weights=weights,
        activation=folder.activation,
        folder=folder,
        notes=(note,) if note else (),
    )


def _make_model(config: PretrainedConfig, definition: ModelDefinition) -> torch.nn.Module:
    """With the attention that is served: packing is proven with it."""
    attention = definition.model["attention"]
    leave_torchao()
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    # A checkpoint in half precision has its type in the config, and the model would be made in it.
    return model.float().eval()


def _build_model(config: PretrainedConfig, definition: ModelDefinition, folder: Path) -> torch.nn.Module:
    try:
        return _make_model(config, definition)
    except Exception as error:
        raise BuildError(
            f"{folder}/config.json makes no sequence classifier of transformers: {shorten(error)}"
        ) from error


def _drop_old_buffers(state: dict[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    # Checkpoints from before transformers 4.31 carry the position_ids buffer, which is computed now.
    own = model.state_dict().keys()
    return {key: value for key, value in state.items() if key in own or not key.endswith("position_ids")}


def _make_config(definition: ModelDefinition, *, labels: list[str]) -> PretrainedConfig:
    options = {**definition.architecture_options, "num_labels": len(labels)}
    return AutoConfig.for_model(definition.architecture, **options)


_SOURCES = {"auto": _from_auto, "pretrained": _from_pretrained, "random": _from_random, "path": _from_path}
