"""The text handler from load to answer, without IPEX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handlers.cpu_text_classifier import CpuTextClassifier
from tests.handlers.context import FakeContext


@pytest.fixture(scope="module")
def handler(tiny_text: Path) -> CpuTextClassifier:
    loaded = CpuTextClassifier()
    loaded.initialize(FakeContext(tiny_text))
    return loaded


def ask(handler, tiny_text, *bodies):
    context = FakeContext(tiny_text)
    return [json.loads(answer) for answer in handler.handle([{"body": b} for b in bodies], context)], context


def test_each_form_of_one_text_gets_one_answer(handler, tiny_text):
    forms = ["good", b"good", bytearray(b"good"), {"text": "good"}, b'{"text": "good"}', '{"text": "good"}']
    answers, _ = ask(handler, tiny_text, *forms)
    for answer in answers:
        assert answer["probabilities"] == pytest.approx(answers[0]["probabilities"], abs=1e-5)
    assert set(answers[0]["probabilities"]) == {"negative", "neutral", "positive"}
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    best = max(answers[0]["probabilities"], key=answers[0]["probabilities"].get)
    assert answers[0]["label"] == best


def test_a_list_of_texts_answers_a_list_in_order(handler, tiny_text):
    texts = ["one", "a much longer text than the first one is, by some words at least", "three"]
    (together,), _ = ask(handler, tiny_text, {"text": texts})
    alone, _ = ask(handler, tiny_text, *texts)
    for got, expected in zip(together, alone, strict=True):
        assert got["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_mixed_lengths_in_one_batch_answer_as_alone(handler, tiny_text):
    texts = ["x", "word " * 20, "some words here", "word " * 12, "y"]
    batch, _ = ask(handler, tiny_text, *texts)
    for text, answer in zip(texts, batch, strict=True):
        (alone,), _ = ask(handler, tiny_text, text)
        assert answer["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)


def test_a_cut_text_is_said(handler, tiny_text):
    (short, long), _ = ask(handler, tiny_text, "a short text", "word " * 100)
    assert "truncated" not in short
    assert long["truncated"]["tokens_used"] == 32
    assert long["truncated"]["characters"] == long["truncated"]["characters_read"] == 500
    assert long["truncated"]["tokens"] == 102  # [CLS], a hundred words, [SEP]


def test_a_huge_text_is_not_read_whole_and_says_so(handler, tiny_text):
    (answer,), _ = ask(handler, tiny_text, "word " * 1_000_000)
    assert answer["truncated"]["characters"] == 5_000_000
    assert answer["truncated"]["characters_read"] == 3200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"text": "\\ud800 a"}', "not valid Unicode"),
        (b'{"a":' * 200_000, "the body is not JSON"),
        (b"", "non-empty string"),
        (b"   ", "non-empty string"),
        ({"text": []}, '"text" must hold 1 to 4 texts: got 0'),
        ({"text": ["a"] * 5}, '"text" must hold 1 to 4 texts: got 5'),
        ({"text": [1]}, "non-empty string"),
        ({"text": None}, "non-empty string"),
        ({"txt": "a"}, "has no \"text\": got 'txt'"),
        (b'{"text": ', "the body is not JSON"),
        (b"\xff\xfe", "the text is not UTF-8"),
    ],
)
def test_wrong_bodies_are_refused_alone(handler, tiny_text, body, message):
    (bad, good), context = ask(handler, tiny_text, body, "good")
    assert message in bad["error"]
    assert context.statuses == {0: (400, "Bad Request")}
    assert "label" in good


def test_form_fields_are_read(handler, tiny_text):
    (answer,) = handler.handle([{"text": b"good"}], FakeContext(tiny_text))
    assert "label" in json.loads(answer)


def test_channels_last_means_nothing_for_text(handler):
    step = handler.runtime.records[1]
    assert (step.name, step.status, step.reason) == (
        "channels_last",
        "not applicable",
        "the model has no convolutions",
    )
