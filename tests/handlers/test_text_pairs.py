"""Pairs of texts are answered as transformers answers them, whatever stands beside them in a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from handlers.shared.texts import TextTokenizer
from handlers.shared.transformer import LogitsOnly, PackedLogits
from handlers.text_classifier import TextClassifier
from tests.handlers.archives import write_text_archive
from tests.handlers.context import FakeContext, form, plain, rows_and_context
from tests.models.folders import SIZES, TEXTS, enliven, make_bert_tokenizer

LENGTH = 64
WORD = "good bad nice awful room staff clean dirty food cold "
PAIRS = [
    ("the staff was nice", "no"),
    ("no", "Awful, COLD food; a dirty room!"),
    (WORD * 9, "no"),
    ("no", WORD * 9),
    (WORD * 5, WORD * 9),
    (WORD * 9, WORD * 5 + "no"),
    (WORD * 3, "no " * 33),
    ("the room", "the food"),
]
"""Of all lengths: none cut, one, the other, both."""


def make_roberta_tokenizer() -> PreTrainedTokenizerFast:
    """Its own processor, which puts two </s> between the texts of a pair."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    raw.train_from_iterator([*TEXTS, WORD], trainer)
    raw.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), specials, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_input_names=["input_ids", "attention_mask"], **names
    )


def make(kind: str, folder: Path) -> tuple[torch.nn.Module, PreTrainedTokenizerFast]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_labels": 3, **SIZES}
    if kind == "bert":
        tokenizer = make_bert_tokenizer(folder)
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LENGTH, **sizes)
        return enliven(BertForSequenceClassification(config)), tokenizer
    tokenizer = make_roberta_tokenizer()
    config = RobertaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=LENGTH + 2, type_vocab_size=1, **sizes
    )
    return enliven(RobertaForSequenceClassification(config)), tokenizer


def load(folder: Path) -> TextClassifier:
    handler = TextClassifier()
    handler.initialize(FakeContext(folder))
    return handler


def ask(handler: TextClassifier, *bodies: object) -> list:
    # A context of its own: another test's call has left its headers in the handler's.
    return [
        json.loads(one) for one in handler.handle([{"body": body} for body in bodies], FakeContext(Path()))
    ]


def ask_transformers(model, tokenizer, *texts: str) -> list[float]:
    given = tokenizer(*texts, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.no_grad():
        return torch.softmax(model(**given).logits, dim=-1)[0].tolist()


@pytest.fixture(params=[("bert", "right"), ("bert", "left"), ("roberta", "right"), ("roberta", "left")],
                ids="-".join)  # fmt: skip
def served(request, tmp_path):
    kind, side = request.param
    model, tokenizer = make(kind, tmp_path)
    tokenizer.truncation_side = side

    def serve(*, packed: bool) -> TextClassifier:
        types = {"token_types": True} if kind == "bert" else {}
        folder = tmp_path / f"{packed}"
        return load(write_text_archive(folder, model, tokenizer, packed=packed, pairs=True, **types))

    return serve, model, tokenizer


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_pairs_beside_each_other_are_answered_as_by_transformers_alone(served, packed):
    serve, model, tokenizer = served
    handler = serve(packed=packed)
    assert handler.describe()["packing"]["on"] is packed
    firsts, seconds = zip(*PAIRS, strict=True)
    bodies = [{"text": list(firsts), "text_pair": list(seconds)}, {"text": "nice"}, "awful food"]
    bodies += [{"text": first, "text_pair": second} for first, second in PAIRS[:2]]
    listed, *others = ask(handler, *bodies)
    texts = [*PAIRS, ("nice",), ("awful food",), *PAIRS[:2]]
    for got, text in zip([*listed, *others], texts, strict=True):
        expected = ask_transformers(model, tokenizer, *text)
        assert [*got["probabilities"].values()] == pytest.approx(expected, abs=1e-5), text
    for got, pair in zip(listed, PAIRS, strict=True):
        whole = len(tokenizer(*pair)["input_ids"])
        cut = got.get("truncated")
        assert (cut["tokens"], cut["tokens_used"]) == (whole, LENGTH) if whole > LENGTH else cut is None


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("most", [16, 17])
def test_texts_of_all_lengths_are_cut_as_by_tokenizers_itself(tmp_path, side, most):
    for processed in (make_bert_tokenizer(tmp_path), make_roberta_tokenizer()):
        processed.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
        own = TextTokenizer(
            tmp_path / "tokenizer.json", max_tokens=most, truncation_side=side, split_special_tokens=False,
            token_types=True,
        )  # fmt: skip
        theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        theirs.enable_truncation(most, direction=side)
        words = [" ".join(WORD.split()[place % 10] for place in range(count)) for count in range(1, 20)]
        texts = [*words, *((first, second) for first in words for second in words)]
        for got, text in zip(own.tokenize(texts), texts, strict=True):
            wanted = theirs.encode(*([text] if isinstance(text, str) else text))
            assert (got.ids, got.types) == (tuple(wanted.ids), tuple(wanted.type_ids)), text


@pytest.mark.parametrize("kind", [PackedLogits, LogitsOnly])
def test_token_types_that_do_not_reach_the_model_fail_the_load(tmp_path, monkeypatch, kind):
    model, tokenizer = make("bert", tmp_path)
    folder = write_text_archive(
        tmp_path, model, tokenizer, packed=kind is PackedLogits, pairs=True, token_types=True
    )
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *inputs: forward(self, *inputs[:-1]))
    with pytest.raises(RuntimeError, match="relative error"):
        load(folder)


def test_without_token_types_the_inputs_are_as_they_were(texts):
    samples = texts.tokenizer.tokenize(["good", "bad"])
    assert [sample.types for sample in samples] == [(), ()]
    assert len(texts.collate_rows([samples], length=16)) == 4


@pytest.mark.parametrize(
    "body",
    [
        {"text": "a", "text_pair": ["b"]},
        {"text": ["a", "b"], "text_pair": ["b"]},
        {"text": ["a"], "text_pair": "b"},
        {"text": "a", "text_pair": None},
        {"text": "a", "text_pair": " "},
        {"text": [["a", "b"]]},
        {"text_pair": "b"},
        {"text": "a", "text_pair": "b", "other": "c"},
        b'{"text": "a", "text_pair": "\\ud800"}',
    ],
    ids=str,
)
def test_a_wrong_pair_is_rejected_alone(pair_handler, body):
    bad, good = ask(pair_handler, body, {"text": "good", "text_pair": "bad"})
    assert (bad["code"], "label" in good) == (400, True)


@pytest.fixture(scope="module")
def pair_handler(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    return load(write_text_archive(folder, *make("bert", folder), pairs=True, token_types=True))


def test_a_form_with_both_texts_is_a_pair(pair_handler):
    sent = form(("text", "", b"good"), ("text_pair", "", "für".encode())), plain(b"good")
    rows, context = rows_and_context(Path(), *sent)
    both, first = map(json.loads, pair_handler.handle(rows, context))
    assert both == ask(pair_handler, {"text": "good", "text_pair": "für"})[0] != first


def test_a_model_of_single_texts_says_so(texts):
    (answer,) = ask(texts, {"text": "good", "text_pair": "bad"})
    assert answer["code"] == 400
    assert "single texts" in answer["error"]
