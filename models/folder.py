"""Reads a Hugging Face folder of a text model: config, tokenizer, label names.

A model must see what it was trained to see, and be read as it was trained to be read. What a folder says of
either is honoured, or it is rejected by the name of its field; `prove_reading` then compares the kit's own
reading of texts with transformers'.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from handlers.shared.outputs import NONE, SIGMOID, SOFTMAX, choose_activation
from handlers.shared.texts import Text, TextTokenizer
from handlers.shared.transformer import answer_alone
from models.errors import BuildError
from models.files import SENTENCEPIECE_FILES, TOKENIZER_FILES, find_labels_file, has_tokenizer
from models.labels import read_labels
from models.new import read_cross_encoder
from models.packing import TOLERANCE, find_positions
from models.samples import SAMPLE_TEXT

OWN_ATTENTIONS = ("eager", "sdpa")
"""Implementations that are part of transformers and torch."""
SHOWN_CHARACTERS = 300
"""Of transformers' messages, which can be pages."""
SEQUENCES, TOKENS, BASE_MODEL = "ForSequenceClassification", "ForTokenClassification", "Model"
"""Ends of transformers' class names."""
TASKS = ("text-classification", "sentiment-analysis")
"""Names of transformers' pipeline whose `task_specific_params` change what a sequence classifier answers."""
CROSS_ENCODER_ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": SIGMOID,
    "torch.nn.modules.linear.Identity": NONE,
    "torch.nn.modules.activation.Softmax": SOFTMAX,
}
"""What sentence-transformers keeps of a CrossEncoder → how its outputs are read."""
PROOF_TEXTS = (
    SAMPLE_TEXT,
    "Ünïcödé NAÏVE Café — ΑΒΓ, 部屋 は 静か, пять ½ ﬁ 🙂",
    "  spaces,\ttabs\nand lines ",
    "[CLS] [SEP] [MASK] [UNK] <s> </s> <pad> <unk> <mask> <|endoftext|>",
    "a",
)
"""Beside a text that is cut at either end: case, accents, scripts, spaces, and names of special tokens."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What is read of one."""

    path: Path
    config: PretrainedConfig
    tokenizer: Any
    """A fast tokenizer of transformers."""
    labels: list[str]
    activation: str


def read_folder(path: Path, *, ending: str, labels: list[str] | None) -> Folder:
    """BuildError names what cannot be served; `ending` is that of the class of transformers which the config
    must name, and `labels` None takes labels.txt or the config's id2label."""
    raw = _read_json(path / "config.json")
    _reject_foreign_code(path / "config.json", raw)
    _reject_unserved(path, raw, ending)
    config = _read_config(path)
    labelled = ending != BASE_MODEL
    names = _read_labels(path, config, labels) if labelled else []
    if labelled and len(names) != config.num_labels:
        raise BuildError(
            f"the model has {config.num_labels} outputs, but {len(names)} labels are named: {names}"
        )
    return Folder(
        path=path,
        config=config,
        tokenizer=_read_tokenizer(path, vocabulary=config.vocab_size),
        labels=names,
        activation=_read_activation(path, config) if ending == SEQUENCES else SOFTMAX,
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise BuildError(f"{file} cannot be read as JSON: {shorten(error)}") from error
    if not isinstance(raw, dict):
        raise BuildError(f"{file} must hold fields and values: got {type(raw).__name__}")
    return raw


def _reject_foreign_code(file: Path, raw: Mapping[str, Any]) -> None:
    """BuildError for a config whose attention is code of the hub: transformers 4.57 would run it.

    CVE-2026-4372: `_attn_implementation_internal: OWNER/NAME`, of the config or of one inside it.
    """
    foreign = [name for name in _find_attentions(raw) if name not in OWN_ATTENTIONS]
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


def _reject_unserved(folder: Path, config: Mapping[str, Any], ending: str) -> None:
    """Fields that would have transformers load, feed or read another model than the one that is served."""
    architecture = str((config.get("architectures") or [ending])[0])
    if not architecture.endswith(ending):
        raise BuildError(
            f"{folder}/config.json: architectures is {architecture}; this handler serves …{ending} alone"
        )
    for field, why in (
        ("quantization_config", "its weights are quantised already; save the model unquantised"),
        ("compression_config", "its weights are compressed; save the model uncompressed"),
    ):
        if config.get(field):
            raise BuildError(f"{folder}/config.json: {field} is not served: {why}")
    tasks = [task for task in TASKS if (config.get("task_specific_params") or {}).get(task)]
    if tasks:
        raise BuildError(
            f"{folder}/config.json: task_specific_params of {tasks[0]} are not read; write what they say as "
            "fields of config.json (problem_type, id2label) and take them out"
        )
    settings = folder / "tokenizer_config.json"
    for file, raw in (
        (folder / "config.json", config),
        (settings, _read_json(settings) if settings.is_file() else {}),
    ):
        if raw.get("auto_map"):
            raise BuildError(
                f"{file}: auto_map names code of the model's own, which is not run; if transformers' own "
                "class answers the same, take the field out"
            )


def _read_config(folder: Path) -> PretrainedConfig:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers has no common class for what may be wrong with it
        raise BuildError(f"{folder}/config.json cannot be read as a model's: {shorten(error)}") from error
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise BuildError(
            f"{folder}/config.json must be a text model's, with vocab_size: got {config.model_type}"
        )
    return config


def _read_activation(folder: Path, config: PretrainedConfig) -> str:
    try:
        activation = choose_activation(config.problem_type, config.num_labels)
    except KeyError as error:
        raise BuildError(f"{folder}/config.json: problem_type {error} is not one of transformers'") from error
    said = read_cross_encoder(folder, config.to_dict())
    if not said:
        return activation
    if said not in CROSS_ENCODER_ACTIVATIONS:
        raise BuildError(
            f"{folder}: the activation function of a CrossEncoder must be one of "
            f"{', '.join(CROSS_ENCODER_ACTIVATIONS)}: got {said!r}"
        )
    return CROSS_ENCODER_ACTIVATIONS[said]


def _read_tokenizer(folder: Path, *, vocabulary: int) -> Any:
    _check_tokenizer_files(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    except Exception as error:
        raise BuildError(f"the tokenizer in {folder} cannot be read: {shorten(error)}") from error
    if not tokenizer.is_fast:
        raise BuildError(f"the tokenizer in {folder} must be a fast one: got {type(tokenizer).__name__}")
    if tokenizer.pad_token_id is None:
        raise BuildError(
            f"the tokenizer in {folder} must have a padding token: got none; "
            "set tokenizer.pad_token and save it again"
        )
    if len(tokenizer) > vocabulary:
        raise BuildError(f"the tokenizer has {len(tokenizer)} tokens, the model's vocabulary {vocabulary}")
    if getattr(tokenizer.backend_tokenizer.model, "dropout", None):
        raise BuildError(
            f"{folder}/tokenizer.json: dropout cuts a text into other tokens each time; set it to null"
        )
    return tokenizer


def _check_tokenizer_files(folder: Path) -> None:
    if has_tokenizer(folder):
        return
    pieces = next((name for name in SENTENCEPIECE_FILES if (folder / name).is_file()), None)
    if pieces is None:
        raise BuildError(f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES)}); save it with the model")
    raise BuildError(
        f"the tokenizer has a SentencePiece file alone ({pieces}), and tokenizer.json is needed. Write it: "
        "pip install transformers sentencepiece protobuf && python -c 'import sys; from transformers import "
        "AutoTokenizer as T; T.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' FOLDER "
        f"(got {folder})"
    )


def _read_labels(folder: Path, config: PretrainedConfig, given: list[str] | None) -> list[str]:
    indices = list(range(config.num_labels))
    if sorted(config.id2label) != indices:
        raise BuildError(
            f"{folder}/config.json: id2label must name outputs 0 to {indices[-1]}: "
            f"got {sorted(config.id2label)}"
        )
    said = [str(config.id2label[index]) for index in indices]
    backwards = {index: str(name) for name, index in config.label2id.items()}
    _check_order(folder, said, "label2id", [backwards.get(index, "") for index in indices])
    file = find_labels_file(folder)
    source, names = "model.yaml", given
    if names is None and file is not None:
        source, names = file.name, read_labels(file)
    _check_order(folder, said, source, names or said)
    return names or said


def _check_order(folder: Path, said: list[str], source: str, names: list[str]) -> None:
    """BuildError for the same names in another order: one of the two is not the training's."""
    if names != said and sorted(names) == sorted(said):
        raise BuildError(
            f"{folder}: {source} names the outputs {names}, config.json's id2label {said}; keep the one that "
            "the model was trained with, and take the other out"
        )


def limit_tokens(
    model: torch.nn.Module, config: PretrainedConfig, tokenizer: Any = None, longest: int | None = None
) -> int | None:
    """The most tokens of a text that the model has positions for, its tokenizer lets through, and `longest`
    allows; None where none says."""
    table, first = find_positions(model)
    limits = [
        longest,
        table.num_embeddings - first if table else None,
        getattr(config, "max_position_embeddings", None),
        getattr(tokenizer, "model_max_length", None),
    ]
    # transformers says "no limit" by 1e30, some configs by -1.
    known = [int(one) for one in limits if isinstance(one, (int, float)) and 0 < one < 1e9]
    return min(known, default=None)


def describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Settings of transformers' that tokenizer.json does not hold, as TextTokenizer takes them."""
    return {
        "truncation_side": tokenizer.truncation_side,
        "split_special_tokens": bool(tokenizer.split_special_tokens),
    }


def read_longest(folder: Path) -> int | None:
    """max_seq_length of sentence-transformers; BuildError for prompts, which are not put before texts."""
    file, prompts = folder / "sentence_bert_config.json", folder / "config_sentence_transformers.json"
    prompt = _read_json(prompts).get("default_prompt_name") if prompts.is_file() else None
    if prompt:
        raise BuildError(
            f"{prompts}: default_prompt_name is {prompt}, and no prompt is put before texts here; have "
            "clients send it, and set the field to null"
        )
    longest = _read_json(file).get("max_seq_length") if file.is_file() else None
    return int(longest) if longest else None


def prove_reading(
    folder: Folder, model: torch.nn.Module, reader: TextTokenizer, *, longest: int, pairs: bool
) -> None:
    """BuildError where the kit reads a text or a pair, or feeds it to the model, other than transformers
    would."""
    taken = inspect.signature(model.forward).parameters
    head, tail = f"{SAMPLE_TEXT} " * longest, f"{PROOF_TEXTS[1]} " * longest
    texts: list[Text] = [*PROOF_TEXTS, head[: 4 * longest] + tail[: 4 * longest]]
    texts += [(PROOF_TEXTS[0], text) for text in texts if pairs and isinstance(text, str)]
    for text in texts:
        parts = text if isinstance(text, tuple) else (text,)
        wanted = folder.tokenizer(*parts, truncation=True, max_length=longest, return_tensors="pt")
        (tokens,) = reader.tokenize([text])
        if list(tokens.ids) != wanted["input_ids"][0].tolist():
            raise BuildError(
                f"the tokenizer in {folder.path} is not served: of {str(text)[:40]!r} transformers makes "
                f"other tokens than tokenizer.json alone: {wanted['input_ids'][0, :12].tolist()} …, "
                f"not {list(tokens.ids[:12])} …"
            )
        try:
            with torch.no_grad():
                expected = model(**{name: wanted[name] for name in wanted if name in taken})[0]
            got = answer_alone(model, tokens.ids, tokens.types)
        except Exception as error:  # whatever an architecture makes of a text as long as it says it takes
            raise BuildError(
                f"the model in {folder.path} fails for a text of {len(tokens.ids)} tokens: {shorten(error)}"
            ) from error
        # Token types, for one: XLNet's tokenizer gives some that are not 0.
        worst = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
        if not worst <= TOLERANCE:
            given = ", ".join(wanted)
            raise BuildError(
                f"the model in {folder.path} is not served: with all that its tokenizer gives ({given}) it "
                f"answers otherwise than with input_ids and attention_mask alone (relative error {worst:.2g})"
            )


def shorten(error: Exception) -> str:
    """The kind of an exception of transformers and the beginning of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN_CHARACTERS]}"
