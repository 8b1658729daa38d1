"""The text handler from load to answer, without IPEX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handlers.cpu_image_classifier import CpuImageClassifier
from handlers.cpu_text_classifier import CpuTextClassifier
from handlers.shared import torchserve
from handlers.shared.shapes import Padding
from tests.handlers.context import FakeContext, FakeMetrics


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


def test_a_batch_is_tokenised_at_once_and_its_padding_counted(tiny_text, monkeypatch):
    handler = CpuTextClassifier()
    handler.initialize(FakeContext(tiny_text))
    calls = []
    encode = handler.tokenizer.encode
    monkeypatch.setattr(handler.tokenizer, "encode", lambda texts: calls.append(len(texts)) or encode(texts))
    ask(handler, tiny_text, "word " * 6, {"text": ["word " * 14, "word " * 20]}, b"\xff", "word " * 30)
    assert calls == [4]
    # Two special tokens each; lengths 16 and 32; what does not fit into 32 tokens is cut.
    described = handler.runtime.describe()["padding"]
    assert described["tokens"] == 8 + 16 + 22 + 32
    assert described["padded_tokens"] == 16 + 16 + 32 + 32
    assert described["runs"] == 3


def test_without_buckets_a_batch_is_run_whole_and_padded_to_its_longest(tiny_text, monkeypatch):
    texts = ["word", "word " * 9, "word " * 17]
    monkeypatch.setenv("CPU_KIT_OPTIONS", json.dumps({"tiny_text": {"off": ["buckets"]}}))
    baseline, handler = CpuTextClassifier(), CpuTextClassifier()
    baseline.initialize(FakeContext(tiny_text))
    monkeypatch.delenv("CPU_KIT_OPTIONS")
    handler.initialize(FakeContext(tiny_text))
    for got, expected in zip(
        ask(baseline, tiny_text, *texts)[0], ask(handler, tiny_text, *texts)[0], strict=True
    ):
        assert got["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert baseline.runtime.describe()["padding"] == {
        "runs": 1, "tokens": 3 + 11 + 19, "padded_tokens": 3 * 19, "waste": pytest.approx(0.4211),
    }  # fmt: skip


def test_padding_is_reported_to_torchserve_once_a_second(monkeypatch):
    now = 100.0
    monkeypatch.setattr(torchserve.time, "monotonic", lambda: now)
    report, metrics, padding = torchserve.PaddingReport(), FakeMetrics(), Padding(tokens=6, padded_tokens=8)
    report.send(padding, metrics)
    padding.tokens, padding.padded_tokens = 16, 24
    report.send(padding, metrics)
    assert metrics.counted == [("TextTokens", 6), ("TextTokensPadded", 8)]
    now += 1
    report.send(padding, metrics)
    now += 1
    report.send(padding, metrics)  # nothing new
    assert metrics.counted[2:] == [("TextTokens", 10), ("TextTokensPadded", 16)]


def test_images_report_no_padding(tiny_image):
    handler, context = CpuImageClassifier(), FakeContext(tiny_image)
    handler.initialize(context)
    handler.handle([{"body": (tiny_image / "canary.jpg").read_bytes()}], context)
    assert context.metrics.counted == []
