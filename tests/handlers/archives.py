"""Archives as a build would leave them, of any model and handler, in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from handlers.definition import Definition, Example, Origin, Precision, render_definition
from models.packing import find_positions

RULES = Precision(self_check_relative_error=1e-3, answer_relative=0.01, answer_absolute=0.001)
TEXT = "The staff was nice and the room clean, no cold food."


def write_archive(
    folder: Path, model: torch.nn.Module, *, example: bytes, labels: tuple[str, ...] = (), **settings: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous().clone() for key, value in model.state_dict().items()},
              folder / "model.safetensors")  # fmt: skip
    definition = Definition(
        name="tiny",
        handler="tiny",
        weights="random",
        labels=labels,
        example=Example(file="example", content_type="application/octet-stream"),
        batch_sizes=(1, 2, 4),
        precisions={"fp32": RULES},
        model=settings,
        inputs="",
        origin=Origin(source="random", path="", files=""),
        built_with={},
    )
    (folder / "definition.json").write_text(render_definition(definition))
    (folder / "example").write_bytes(example)
    return folder


def write_text_archive(
    folder: Path, model: torch.nn.Module, tokenizer: Any, *, packed: bool = True, **settings: Any
) -> Path:
    """Of a transformers model, which takes 64 tokens at most."""
    packing = {"first_position": find_positions(model)[1]} if packed else {"impossible": "not asked for"}
    labels = tuple(model.config.id2label[index] for index in range(model.config.num_labels))
    texts = {"truncation_side": tokenizer.truncation_side, "split_special_tokens": False}
    write_archive(
        folder, model, example=TEXT.encode(), labels=labels, token_lengths=[16, 32, 64], row_tokens=32,
        tokens_per_run=64, max_texts_per_request=8, attention="eager", tokenizer=texts, packing=packing,
        padding_id=tokenizer.pad_token_id, **{"activation": "softmax", **settings},
    )  # fmt: skip
    config = {**model.config.to_dict(), "num_labels": model.config.num_labels}
    for volatile in ("id2label", "label2id", "_name_or_path", "transformers_version", "dtype"):
        config.pop(volatile, None)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder
