"""A small BERT, with a tokenizer of its own, that tells which library a docstring is from."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from tests.conftest import TINY_TEXT, write_definition
from tests.models.training import SEED, Trained, borrow_precisions, cut, fixed_conditions, train

LIBRARIES = {"torch": "distributed", "matplotlib": "", "networkx": ""}
"""By label, in the order of the classes: the part of the library that is read."""
WORDS = (15, 45)
"""Least and most of a text."""
EVALUATION, CALIBRATION, TRAINING = 160, 40, 800
"""Texts of each library."""
SAME = 6
"""Texts that share this many first words count as one: copies must not be trained on and held out."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASK = SPECIAL.index("[MASK]")
FREQUENT, LENGTH = 2500, 64
"""Words of the vocabulary, and most tokens of a text."""
CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": LENGTH,
}
EPOCHS, ROWS, RATE, MASKED = 5, 32, 2e-3, 0.15
Example = tuple[str, str]
"""(label, text)."""


def train_docstrings(folder: Path) -> Trained:
    """Write the texts, train on one part of them, and save model and tokenizer as transformers does."""
    parts = _write_texts(folder)
    labels = tuple(LIBRARIES)
    definition = write_definition(folder / "models", _define())
    with fixed_conditions():
        tokenizer = _train_tokenizer([text for _, text in parts["train"]], folder)
        model = _train(parts["train"], tokenizer)
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
        labels=labels,
        probabilities=probabilities,
    )


def _define() -> dict:
    model = {**TINY_TEXT["model"], "token_lengths": [16, 32, LENGTH], "tokens_per_run": 4 * LENGTH}
    return {
        **TINY_TEXT,
        **borrow_precisions("text"),
        "name": "docstrings",
        "batch_sizes": [1, 2, 4],
        "model": model,
    }


def _write_texts(folder: Path) -> dict[str, list[Example]]:
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
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent / below
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


def _train_tokenizer(texts: Sequence[str], folder: Path) -> BertTokenizerFast:
    """WordPiece with the texts' most frequent words; all others are spelt."""
    # Counted here: the trainer of the tokenizers library breaks ties in another way each time.
    normalizer, splitter = BertNormalizer(lowercase=True), BertPreTokenizer()
    split = (splitter.pre_tokenize_str(normalizer.normalize_str(text)) for text in texts)
    counts = Counter(word for words in split for word, _ in words)
    letters = sorted({letter for word in counts for letter in word})
    words = sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))
    vocabulary = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words[:FREQUENT]]
    file = folder / "vocab.txt"
    file.write_text("\n".join(vocabulary), encoding="utf-8")
    return BertTokenizerFast(vocab_file=str(file), model_max_length=LENGTH)


def _encode(tokenizer: BertTokenizerFast, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 (n, longest) each."""
    encoded = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


def _to_requests(texts: Sequence[str]) -> tuple[bytes, ...]:
    """A plain text, one in JSON, three in JSON, and again."""
    requests = []
    for start in range(0, len(texts), 5):
        plain, single, *several = texts[start : start + 5]
        requests += [plain.encode(), *(json.dumps({"text": one}).encode() for one in (single, several))]
    return tuple(requests)


def _train(examples: Sequence[Example], tokenizer: BertTokenizerFast) -> BertForSequenceClassification:
    names = dict(enumerate(LIBRARIES))
    config = BertConfig(
        **CONFIG,
        vocab_size=len(tokenizer),
        num_labels=len(names),
        id2label=names,
        label2id={label: number for number, label in names.items()},
    )
    model = BertForSequenceClassification(config)
    classes = torch.tensor([list(LIBRARIES).index(label) for label, _ in examples])
    # Neighbours in a batch are of about one length.
    order = sorted(range(len(examples)), key=lambda number: len(examples[number][1]))

    def loss(batch: Sequence[int]) -> torch.Tensor:
        ids, mask = _encode(tokenizer, [examples[number][1] for number in batch])
        # Some words are hidden, or every text would be learnt by heart.
        ids[(torch.rand(ids.shape) < MASKED) & (ids > MASK)] = MASK
        return torch.nn.functional.cross_entropy(model(ids, mask).logits, classes[list(batch)])

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    train(model, optimizer, batches=cut(order, ROWS), epochs=EPOCHS, loss=loss)
    return model
