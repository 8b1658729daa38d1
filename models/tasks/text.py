"""Prepares transformers' text models: a public checkpoint, seeded random or a user's own folder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging as transformers_logging

from handlers.shared.outputs import SOFTMAX
from handlers.shared.texts import TextTokenizer
from handlers.shared.transformer import (
    Embeddings,
    LogitsOnly,
    PackedEmbeddings,
    PackedLogits,
    answer_alone,
    make_model,
)
from models.definition import ModelDefinition
from models.download import RETRY_SECONDS, check_file, check_offered
from models.errors import BuildError
from models.example import stage_example
from models.files import find_weights_file, hash_file
from models.folder import (
    BASE_MODEL,
    PROOF_TEXTS,
    SEQUENCES,
    TOKENS,
    Folder,
    describe_tokenizer,
    limit_tokens,
    prove_reading,
    read_folder,
    read_longest,
    shorten,
)
from models.gate.figures import EMBEDDING
from models.labels import check_different
from models.new import read_pooling, takes_pairs
from models.options import EmbeddingOptions, SequenceOptions, TextOptions
from models.packing import Forms, check_padding, describe_packing
from models.progress import say
from models.random_weights import SEED, capture_features, find_head, fit_head
from models.repository import fetch_repository, find_cached_repository, locate_repository
from models.request import WeightsRequest
from models.state import load_state, read_checkpoint, save_weights
from models.synthetic import SUBJECTS, write_member
from models.tasks.prepared import RANDOM_NOTE, Prepared, obtain
from models.vocabulary import NOTE, make_tokenizer

CLASSES = {
    "text_classifier": ("AutoModelForSequenceClassification", SEQUENCES),
    "token_classifier": ("AutoModelForTokenClassification", TOKENS),
    "text_embeddings": ("AutoModel", BASE_MODEL),
}
"""Handler → class of transformers, and how the class that a config names must end."""
LABELLED = ("text_classifier", "token_classifier")
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
    source = obtain(definition, request, _MAKERS)
    check_different(source.labels, source=source.weights)
    folder = source.folder
    longest = read_longest(folder.path) if folder else None
    limit = limit_tokens(source.model, source.config, folder and folder.tokenizer, longest)
    lengths = _fit_lengths(definition.options, limit)
    longest = lengths["token_lengths"][-1]
    tokenizer = describe_tokenizer(folder.tokenizer) if folder else PLAIN_TOKENIZER
    task = _describe_task(definition, source)
    _save(source, staging)
    types = bool(task.get("token_types"))
    reader = TextTokenizer(staging / "tokenizer.json", max_tokens=longest, token_types=types, **tokenizer)
    if folder:
        pairs = bool(task.get("pairs"))
        prove_reading(folder, source.model, reader, longest=longest, pairs=pairs)
    forms = _make_forms(definition, source, task)
    packing = describe_packing(forms, vocabulary=source.config.vocab_size, longest=longest)
    if "impossible" in packing:
        say(f"  {definition.name}: texts cannot share rows: {packing['impossible']}; each is padded instead")
        check_padding(forms, [tokens.ids for tokens in reader.tokenize(PROOF_TEXTS)])
    return Prepared(
        weights=source.weights,
        notes=(*source.notes, *_note_limit(longest, limit)),
        model={
            **definition.options.model_dump(mode="json", exclude_none=True),
            **lengths,
            **task,
            "architecture": source.config.model_type,
            "padding_id": source.padding_id,
            "packing": packing,
            "tokenizer": tokenizer,
        },
        labels=source.labels,
        example=stage_example(definition, staging, takes="text"),
    )


def _describe_task(definition: ModelDefinition, source: Source) -> dict[str, Any]:
    """What the handler reads of its own task."""
    options, folder = definition.options, source.folder
    if isinstance(options, EmbeddingOptions):
        said = options.model_dump(include={"pooling", "normalize"}, exclude_none=True)
        if len(said) < 2:
            found = read_pooling(folder.path) if folder else {"pooling": "mean", "normalize": True}
            said = {**found, **said}
        return {**said, "activation": EMBEDDING}
    if not isinstance(options, SequenceOptions):
        return {"activation": SOFTMAX}
    pairs = options.pairs
    if pairs is None:
        pairs = folder is not None and takes_pairs(folder.path, source.config.to_dict())
    given = folder.tokenizer.model_input_names if folder else ()
    taken = inspect.signature(source.model.forward).parameters
    types = pairs and "token_type_ids" in given and "token_type_ids" in taken
    return {"pairs": pairs, "token_types": types, "activation": source.activation}


def _make_forms(definition: ModelDefinition, source: Source, task: dict[str, Any]) -> Forms:
    """As the handler builds them."""
    model, types = source.model, bool(task.get("token_types"))
    packed: torch.nn.Module | None = PackedLogits(model)
    padded: torch.nn.Module = LogitsOnly(model)
    if definition.handler == "token_classifier":
        packed = None
    embeddings = None
    if isinstance(definition.options, EmbeddingOptions):
        how = {"pooling": task["pooling"], "normalize": task["normalize"]}
        packed, padded = PackedEmbeddings(model, **how), (embeddings := Embeddings(model, **how))

    def answer(ids: Sequence[int]) -> torch.Tensor:
        output = answer_alone(model, ids, [0] * len(ids) if types else ())
        return embeddings.pool(output, torch.ones(1, len(ids))) if embeddings else output

    return Forms(
        model=model,
        packed=packed,
        padded=padded,
        alone=answer,
        activation=task["activation"],
        padding_id=source.padding_id,
        types=types,
    )


def fetch_public(definition: ModelDefinition) -> None:
    """DownloadError, soon, where the repository cannot be had."""
    if find_cached_repository(definition.public) is None:
        check_offered(locate_repository(definition.public), seconds=RETRY_SECONDS)
        fetch_repository(definition.public)


def _save(source: Source, staging: Path) -> None:
    save_weights(source.model.state_dict(), staging)
    config = source.config.to_dict()
    if source.labels:
        config["num_labels"] = len(source.labels)
    for volatile in ("id2label", "label2id", "_name_or_path", "transformers_version", "dtype"):
        config.pop(volatile, None)
    (staging / "config.json").write_text(json.dumps(config, sort_keys=True, indent=1), encoding="utf-8")
    source.tokenizer.save(str(staging / "tokenizer.json"))


def _fit_lengths(options: TextOptions, limit: int | None) -> dict[str, Any]:
    """The definition's token_lengths and row_tokens, none longer than the model takes."""
    lengths = list(options.token_lengths)
    if limit is not None and limit < lengths[-1]:
        lengths = [*(length for length in lengths if length < limit), limit]
    return {
        "token_lengths": lengths,
        "row_tokens": max([one for one in lengths if one <= options.row_tokens], default=lengths[0]),
    }


def _note_limit(longest: int, limit: int | None) -> tuple[str, ...]:
    if limit is None or limit <= longest:
        return ()
    return (f"texts are cut at {longest} tokens (token_lengths in model.yaml); the model takes {limit}",)


def _from_random(definition: ModelDefinition, request: WeightsRequest) -> Source:
    torch.manual_seed(SEED)
    labels = list(definition.labels) or (["LABEL_0", "LABEL_1"] if definition.handler in LABELLED else [])
    config = _make_config(definition, labels=labels)
    model, tokenizer = _make_model(config, definition), make_tokenizer()
    if definition.handler == "text_classifier":
        _fit_random_head(model, tokenizer, longest=definition.options.token_lengths[-1])
    return Source(
        model=model,
        config=config,
        labels=labels,
        tokenizer=tokenizer,
        padding_id=0,
        weights=f"random (seed {SEED})",
        notes=(RANDOM_NOTE, NOTE),
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
    file = find_weights_file(fetch_repository(definition.public))
    digest = check_file(file, sha256=definition.weights_sha256)
    weights = f"pretrained ({definition.public}, sha256:{digest})"
    return _from_file(file, definition, request, weights=weights, labels=list(definition.labels))


def _from_path(definition: ModelDefinition, request: WeightsRequest) -> Source:
    assert request.path is not None
    file = find_weights_file(request.path)
    weights = f"user ({file.name}, sha256:{hash_file(file)[:12]})"
    if not (file.parent / "config.json").is_file():
        raise BuildError(
            f"{file.parent} must be a Hugging Face model folder: it has no config.json; "
            "save the model with model.save_pretrained(DIR) and tokenizer.save_pretrained(DIR)"
        )
    own = request.path == definition.local_weights
    labels = list(definition.labels) if own else []
    return _from_file(file, definition, request, weights=weights, labels=labels)


def _from_file(
    file: Path,
    definition: ModelDefinition,
    request: WeightsRequest,
    *,
    weights: str,
    labels: list[str],
) -> Source:
    """Weights in a Hugging Face folder; without `labels`, labels.txt's or the config's id2label."""
    _, ending = CLASSES[definition.handler]
    folder = read_folder(file.parent, ending=ending, labels=labels or None)
    model = _build_model(folder.config, definition, folder.path)
    state, note = read_checkpoint(file, allow_pickle=request.allow_pickle)
    state = _drop_old_buffers(state, model)
    if ending == BASE_MODEL:
        state = _fill_pooler(state, model)
    load_state(model, state, source=f"{folder.path.name}/{file.name}")
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
    kind, _ = CLASSES[definition.handler]
    # A checkpoint in half precision has its type in the config, and the model would be made in it.
    return make_model(kind, config, attention=definition.options.attention).float().eval()


def _build_model(config: PretrainedConfig, definition: ModelDefinition, folder: Path) -> torch.nn.Module:
    try:
        return _make_model(config, definition)
    except Exception as error:
        raise BuildError(f"{folder}/config.json makes no model of transformers: {shorten(error)}") from error


def _drop_old_buffers(state: dict[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    # Checkpoints from before transformers 4.31 carry the position_ids buffer, which is computed now.
    own = model.state_dict().keys()
    return {key: value for key, value in state.items() if key in own or not key.endswith("position_ids")}


def _fill_pooler(state: dict[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What embeddings are not made of, and many folders lack."""
    lacking = {key: one for key, one in model.state_dict().items() if key.startswith("pooler.")}
    return {**{key: torch.zeros_like(one) for key, one in lacking.items()}, **state}


def _make_config(definition: ModelDefinition, *, labels: list[str]) -> PretrainedConfig:
    options = {**definition.architecture_options, **({"num_labels": len(labels)} if labels else {})}
    return AutoConfig.for_model(definition.architecture or "bert", **options)


_MAKERS = {"pretrained": _from_pretrained, "random": _from_random, "path": _from_path}
