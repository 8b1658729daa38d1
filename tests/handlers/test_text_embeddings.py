"""Embeddings are those of sentence-transformers: of a text's own tokens alone, packed and padded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

from handlers.shared.packing import pack_rows
from handlers.shared.transformer import PackedEmbeddings, average
from handlers.text_embeddings import TextEmbeddings
from tests.handlers.archives import write_text_archive
from tests.handlers.context import FakeContext
from tests.models.folders import SIZES, TEXTS, enliven, make_bert_tokenizer

LENGTH = 64
MEAN = {"pooling": "mean", "normalize": True}


def make(folder: Path, *, packed: bool = True, **settings: object) -> tuple[Path, torch.nn.Module]:
    torch.manual_seed(0)
    tokenizer = make_bert_tokenizer(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=LENGTH,
        hidden_size=32,
        intermediate_size=64,
        **SIZES,
    )
    model = enliven(BertModel(config))
    return write_text_archive(folder, model, tokenizer, packed=packed, **{**MEAN, **settings}), model


def load(folder: Path) -> TextEmbeddings:
    handler = TextEmbeddings()
    handler.initialize(FakeContext(folder))
    return handler


def embed(handler: TextEmbeddings, *bodies: object) -> list:
    return [
        json.loads(one) for one in handler.handle([{"body": body} for body in bodies], FakeContext(Path()))
    ]


def embed_alone(model, tokenizer, text: str, *, pooling: str, normalize: bool) -> torch.Tensor:
    given = tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**given).last_hidden_state[0]
    pooled = hidden.mean(dim=0) if pooling == "mean" else hidden[0]
    return pooled / pooled.norm() if normalize else pooled


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize(
    ("pooling", "normalize"), [("mean", True), ("mean", False), ("cls", True), ("cls", False)]
)
def test_each_text_has_its_own_embedding(tmp_path, packed, pooling, normalize):
    folder, model = make(tmp_path, packed=packed, pooling=pooling, normalize=normalize)
    handler = load(folder)
    assert handler.describe()["packing"]["on"] is packed
    listed, *single = embed(handler, {"text": TEXTS}, *TEXTS)
    tokenizer = make_bert_tokenizer(tmp_path)
    for text, among, alone in zip(TEXTS, listed, single, strict=True):
        expected = embed_alone(model, tokenizer, text, pooling=pooling, normalize=normalize).tolist()
        assert among["embedding"] == pytest.approx(expected, abs=1e-5)
        assert alone["embedding"] == pytest.approx(expected, abs=1e-5)
    assert [("truncated" in one) for one in listed] == [False, False, False, False, True]


def test_numbers_have_the_digits_of_float32_and_no_more(tmp_path):
    folder, _ = make(tmp_path)
    (answer,) = embed(load(folder), "good food")
    assert all(value == float(f"{value:.7g}") for value in answer["embedding"])


def test_padding_and_neighbours_never_count():
    hidden = torch.arange(12.0).reshape(6, 2)
    own = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    assert average(hidden, own).tolist() == [[1.0, 2.0], [8.0, 9.0]]


class Echo(torch.nn.Module):
    """Its hidden states are its ids."""

    @property
    def base_model(self):
        return self

    def forward(self, input_ids, **_):
        return (input_ids[:, :, None].float(),)


def test_texts_of_rows_that_are_full_of_short_ones_are_told_apart():
    """A row whose last segment is as high as its width, beside one that has padding."""
    rows = [[(1,), (2,), (3,), (4,)], [(5, 7)]]
    inputs = pack_rows(rows, width=4, padding_id=99, first_position=0)
    pooled = PackedEmbeddings(Echo(), pooling="mean", normalize=False)(*inputs)
    assert pooled[:5, 0].tolist() == [1, 2, 3, 4, 6]


def everything(hidden, own):
    return AVERAGE(hidden, torch.ones_like(own))


def a_token_too_late(hidden, own):
    return AVERAGE(hidden, own.roll(1, dims=-1))


AVERAGE = average


@pytest.mark.parametrize("planted", [everything, a_token_too_late])
def test_a_planted_error_fails_the_load(tmp_path, monkeypatch, planted):
    folder, _ = make(tmp_path)
    monkeypatch.setattr("handlers.shared.transformer.average", planted)
    with pytest.raises(RuntimeError, match="answers a sample beside others not as it answers it alone"):
        load(folder)


def test_another_pooling_is_never_taken_for_one_of_the_two(tmp_path):
    folder, _ = make(tmp_path, pooling="lasttoken")
    with pytest.raises(RuntimeError, match="must be mean or cls: got lasttoken"):
        load(folder)


def test_a_model_that_takes_no_positions_is_padded(tmp_path):
    tokenizer = make_bert_tokenizer(tmp_path)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=32, hidden_dim=64, n_heads=4, n_layers=2)
    model = enliven(DistilBertModel(config))
    handler = load(write_text_archive(tmp_path, model, tokenizer, packed=False, **MEAN))
    (answer,) = embed(handler, "good food")
    with torch.no_grad():
        ids = tokenizer("good food", return_tensors="pt")["input_ids"]
        expected = model(ids).last_hidden_state[0].mean(dim=0)
    assert answer["embedding"] == pytest.approx((expected / expected.norm()).tolist(), abs=1e-5)
