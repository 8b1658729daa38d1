"""Prepares BERT-style sequence classifiers: a public checkpoint, seeded random or a user's own folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PretrainedConfig
from transformers.utils import logging as transformers_logging

from handlers.shared.transformer import leave_torchao
from models.canary import write_canary_text
from models.definition import ModelDefinition
from models.download import check_file
from models.errors import BuildError
from models.files import TOKENIZER_FILES, find_labels_file, find_weights_file, has_tokenizer, hash_file
from models.kinds import Prepared, prefer_pretrained
from models.labels import check_different, read_labels
from models.packing import describe_packing
from models.progress import say
from models.random_weights import SEED, capture_features, find_head, fit_head
from models.repository import fetch_repository
from models.request import WeightsRequest
from models.state import load_state, read_state
from models.synthetic import SUBJECTS, write_member
from models.vocabulary import NOTE, make_tokenizer

CANARY = "canary.txt"
HEAD_TEXTS = 6
"""Texts of each subject from which random weights' head learns."""
OWN_ATTENTIONS = ("eager", "sdpa")
"""Implementations that are part of transformers and torch."""
SHOWN_CHARACTERS = 300
"""Of transformers' messages, which can be pages."""


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
    notes: tuple[str, ...] = ()


def prepare(definition: ModelDefinition, request: WeightsRequest, staging: Path) -> Prepared:
    """Fill `staging`; BuildError when the weights asked for cannot be had or do not fit."""
    transformers_logging.set_verbosity_error()
    source = _SOURCES[request.source](definition, request)
    _check_lengths(definition, source.config)
    check_different(source.labels, source=source.weights)
    packing = describe_packing(
        source.model,
        vocabulary=source.config.vocab_size,
        padding_id=source.padding_id,
        longest=max(definition.model["token_lengths"]),
    )
    if "impossible" in packing:
        say(f"  {definition.name}: texts cannot share rows: {packing['impossible']}; each is padded instead")
    _save(source, staging)
    write_canary_text(staging / CANARY)
    return Prepared(
        weights=source.weights,
        notes=source.notes,
        model={
            **definition.model,
            "architecture": source.config.model_type,
            "padding_id": source.padding_id,
            "packing": packing,
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


def _check_lengths(definition: ModelDefinition, config: PretrainedConfig) -> None:
    longest = max(definition.model["token_lengths"])
    limit = getattr(config, "max_position_embeddings", longest)
    if longest > limit:
        raise BuildError(
            f"{definition.path}: token_lengths must be at most {limit} for this model: got {longest}"
        )


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
    folder = file.parent
    config = _read_config(folder)
    tokenizer = _read_tokenizer(folder, vocabulary=config.vocab_size)
    names = labels or _read_folder_labels(folder, config)
    if len(names) != config.num_labels:
        raise BuildError(
            f"the model has {config.num_labels} classes, but {len(names)} labels are named: {names}"
        )
    model = _build_model(config, definition, folder)
    state = read_state(file, allow_pickle=request.allow_pickle)
    load_state(model, _drop_old_buffers(state, model), source=f"{folder.name}/{file.name}")
    return Source(
        model=model,
        config=config,
        labels=names,
        tokenizer=tokenizer.backend_tokenizer,
        padding_id=int(tokenizer.pad_token_id),
        weights=weights,
    )


def _read_config(folder: Path) -> PretrainedConfig:
    _refuse_foreign_code(folder / "config.json")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers has no common class for what may be wrong with it
        raise BuildError(f"{folder}/config.json cannot be read as a model's: {_shorten(error)}") from error
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise BuildError(
            f"{folder}/config.json must be a text model's, with vocab_size: got {config.model_type}"
        )
    return config


def _refuse_foreign_code(file: Path) -> None:
    """BuildError for a config whose attention is code of the hub: transformers 4.57 would run it.

    CVE-2026-4372: `_attn_implementation_internal: OWNER/NAME`, of the config or of one inside it.
    """
    try:
        names = list(_find_attentions(json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError):
        return  # AutoConfig says better what is wrong with it
    foreign = [name for name in names if name not in OWN_ATTENTIONS]
    if foreign:
        raise BuildError(
            f"{file}: attention must be one of {', '.join(OWN_ATTENTIONS)}: got {foreign[0]!r}, which may be "
            "code of the hub; take the field out"
        )


def _find_attentions(value: Any, *, inside: bool = False) -> Iterator[str]:
    """Every string below a key that speaks of the attention's implementation."""
    pairs = dict(enumerate(value)) if isinstance(value, list) else value
    for key, one in pairs.items() if isinstance(pairs, dict) else ():
        named = inside or "attn_implementation" in str(key)
        if named and isinstance(one, str):
            yield one
        yield from _find_attentions(one, inside=named)


def _make_model(config: PretrainedConfig, definition: ModelDefinition) -> torch.nn.Module:
    """With the attention that is served: packing is proven with it."""
    attention = definition.model["attention"]
    leave_torchao()
    return AutoModelForSequenceClassification.from_config(config, attn_implementation=attention).eval()


def _build_model(config: PretrainedConfig, definition: ModelDefinition, folder: Path) -> torch.nn.Module:
    try:
        return _make_model(config, definition)
    except Exception as error:
        raise BuildError(
            f"{folder}/config.json makes no sequence classifier of transformers: {_shorten(error)}"
        ) from error


def _shorten(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN_CHARACTERS]}"


def _drop_old_buffers(state: dict[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    # Checkpoints from before transformers 4.31 carry the position_ids buffer, which is computed now.
    own = model.state_dict().keys()
    return {key: value for key, value in state.items() if key in own or not key.endswith("position_ids")}


def _read_tokenizer(folder: Path, *, vocabulary: int) -> Any:
    if not has_tokenizer(folder):
        raise BuildError(f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES)}); save it with the model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    except Exception as error:
        raise BuildError(f"the tokenizer in {folder} cannot be read: {_shorten(error)}") from error
    if not tokenizer.is_fast:
        raise BuildError(f"the tokenizer in {folder} must be a fast one: got {type(tokenizer).__name__}")
    if tokenizer.pad_token_id is None:
        raise BuildError(
            f"the tokenizer in {folder} must have a padding token: got none; "
            "set tokenizer.pad_token and save it again"
        )
    if len(tokenizer) > vocabulary:
        raise BuildError(f"the tokenizer has {len(tokenizer)} tokens, the model's vocabulary {vocabulary}")
    return tokenizer


def _read_folder_labels(folder: Path, config: PretrainedConfig) -> list[str]:
    file = find_labels_file(folder)
    if file is not None:
        return read_labels(file)
    indices = list(range(config.num_labels))
    if sorted(config.id2label) != indices:
        raise BuildError(
            f"{folder}/config.json: id2label must name classes 0 to {indices[-1]}: "
            f"got {sorted(config.id2label)}"
        )
    return [str(config.id2label[index]) for index in indices]


def _make_config(definition: ModelDefinition, *, labels: list[str]) -> PretrainedConfig:
    options = {**definition.architecture_options, "num_labels": len(labels)}
    return AutoConfig.for_model(definition.architecture, **options)


_SOURCES = {"auto": _from_auto, "pretrained": _from_pretrained, "random": _from_random, "path": _from_path}
