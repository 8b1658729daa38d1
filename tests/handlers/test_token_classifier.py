"""Entities are those of transformers' pipeline with aggregation_strategy="simple"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification, pipeline

from handlers.shared.texts import Tokens
from handlers.token_classifier import TokenClassifier
from tests.handlers.archives import write_text_archive
from tests.handlers.context import FakeContext
from tests.models.folders import SIZES, TEXTS, enliven, make_bert_tokenizer, name_labels

LENGTH = 64
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
ALL = [*TEXTS[:4], "  Nice \N{GRINNING FACE} staff,\u00a0GOOD fööd —\tno dirty room  ", "good bad " * 60]


def make(folder: Path, **tokenizing: object) -> tuple[Path, Path]:
    """An archive, and the folder that transformers reads."""
    torch.manual_seed(0)
    tokenizer = make_bert_tokenizer(folder / "source", model_max_length=LENGTH, **tokenizing)
    config = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=LENGTH, hidden_size=32, intermediate_size=64,
        **SIZES, **name_labels(LABELS),
    )  # fmt: skip
    model = enliven(BertForTokenClassification(config))
    model.save_pretrained(folder / "source")
    tokenizer.save_pretrained(folder / "source")
    return write_text_archive(folder / "archive", model, tokenizer), folder / "source"


def load(folder: Path) -> TokenClassifier:
    handler = TokenClassifier()
    handler.initialize(FakeContext(folder))
    return handler


def find(handler: TokenClassifier, *bodies: object) -> list:
    return [
        json.loads(one) for one in handler.handle([{"body": body} for body in bodies], FakeContext(Path()))
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    archive, source = make(tmp_path_factory.mktemp("tokens"))
    return load(archive), source


def test_entities_are_transformers_own(made):
    handler, source = made
    listed, *single = find(handler, {"text": ALL}, *ALL)
    ask = pipeline("token-classification", model=str(source), aggregation_strategy="simple", device="cpu")
    kinds = set()
    for text, among, alone in zip(ALL, listed, single, strict=True):
        expected = [
            {
                "entity": one["entity_group"],
                "score": pytest.approx(float(one["score"]), abs=1e-5),
                "start": one["start"],
                "end": one["end"],
                "text": text[one["start"] : one["end"]],
            }
            for one in ask(text)
        ]
        assert among["entities"] == expected
        assert alone == among
        kinds |= {one["entity"] for one in among["entities"]}
    assert kinds == {"PER", "LOC", "MISC"}
    assert listed[-1]["truncated"]["tokens_used"] == LENGTH


def test_the_end_of_a_text_has_its_place_in_the_whole_of_it(tmp_path):
    handler = load(make(tmp_path, truncation_side="left")[0])
    text = "good bad nice awful " * 200
    (answer,) = find(handler, text)
    assert answer["truncated"]["characters_read"] == 20 * LENGTH < len(text)
    assert answer["entities"]
    for one in answer["entities"]:
        assert one["start"] > len(text) - 20 * LENGTH
        assert text[one["start"] : one["end"]] == one["text"]


def test_why_texts_share_no_rows_is_told(made):
    handler, _ = made
    assert handler.describe()["packing"] == {
        "applicable": False,
        "on": False,
        "reason": "each token has an answer of its own: a row holds one text",
    }


def score(*labels: str) -> torch.Tensor:
    """Logits that say each label with three times the odds of all others."""
    odds = torch.nn.functional.one_hot(torch.tensor([LABELS.index(one) for one in labels]), len(LABELS))
    return torch.where(odds == 1, torch.tensor(15.0), torch.tensor(1.0)).log()


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (("B-PER", "I-PER", "O"), ["PER ab"]),
        (("B-PER", "B-PER", "I-PER"), ["PER a", "PER bc"]),
        (("I-PER", "I-LOC", "I-LOC"), ["PER a", "LOC bc"]),
        (("B-LOC", "O", "I-LOC"), ["LOC a", "LOC c"]),
        (("MISC", "MISC", "O"), ["MISC ab"]),
        (("O", "O", "O"), []),
    ],
)
def test_tokens_of_one_entity_are_put_together(made, labels, found):
    handler, _ = made
    offsets = (None, (0, 1), (1, 2), (2, 3), None)
    sample = Tokens(
        ids=(1, 2, 3, 4, 5), total=5, characters=3, characters_read=3, offsets=offsets, text="abc"
    )
    answer = handler.encode(score("B-PER", *labels, "B-LOC"), sample)
    assert [f"{one['entity']} {one['text']}" for one in answer["entities"]] == found
    assert all(one["score"] == pytest.approx(0.75) for one in answer["entities"])
