"""The text handler from load to answer, without IPEX."""

from __future__ import annotations

import json

import pytest

from handlers.request import Request
from handlers.text_classifier import TextClassifier
from tests.handlers.context import FakeContext, Sent, form, plain, rows_and_context


@pytest.fixture
def handler(texts: TextClassifier) -> TextClassifier:
    return texts


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


def test_a_cut_text_is_said(handler, tiny_text):
    (short, long, huge), _ = ask(handler, tiny_text, "a short text", "word " * 100, "word " * 1_000_000)
    assert "truncated" not in short
    assert long["truncated"]["tokens_used"] == 32
    assert long["truncated"]["characters"] == long["truncated"]["characters_read"] == 500
    assert long["truncated"]["tokens"] == 102  # [CLS], a hundred words, [SEP]
    assert (huge["truncated"]["characters"], huge["truncated"]["characters_read"]) == (5_000_000, 640)


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "\\ud800 a"}',
        b'{"a":' * 20_000,
        b"   ",
        {"text": []},
        {"text": ["a"] * 5},
        {"text": [1]},
        {"text": None},
        {"txt": "a"},
        b'{"text": ',
        b"\xe4rger",
        b'{"text": NaN}',
        b'["a", "b"]',
        ["a", "b"],
    ],
)
def test_wrong_bodies_are_rejected_alone(handler, tiny_text, body):
    (bad, good), context = ask(handler, tiny_text, body, "good")
    assert bad["error"]
    assert context.statuses == {0: (400, "Bad Request")}
    assert "label" in good


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (plain("good".encode("utf-16"), "text/plain"), 415, "UTF-16"),
        (plain('{"text": "good"}'.encode("utf-16"), "application/json"), 415, "UTF-16"),
        (plain("gut für".encode("latin-1"), "text/plain; charset=ISO-8859-1"), 415, "iso-8859-1"),
        (plain(b'{"a":' * 100_000, "application/json"), 413, "82000"),
        (plain(b"[" + b"[]," * 100_000 + b"[]]"), 413, "82000"),
        (form(("text", "", b"\xe4rger")), 400, "UTF-8"),
        (form(), 400, '"text"'),
        (form(("other", "", b"x"), ("text", "", b"good")), 400, "'other'"),
        (plain(b'{"text": "good", "text_pair": "bad"}', "application/json"), 400, '"text_pair"'),
        # curl's default
        (form(('{"text": "good"}', "", b""), content_type="application/x-www-form-urlencoded"), 415, "-d"),
        (plain(b"good", "application/json"), 400, "JSON"),
    ],
)
def test_what_is_not_meant_as_a_text_is_rejected_with_its_status(handler, tiny_text, sent, status, said):
    rows, context = rows_and_context(tiny_text, sent, plain(b"good"))
    bad, good = map(json.loads, handler.handle(rows, context))
    assert said in bad["error"]
    assert {position: code for position, (code, _) in context.statuses.items()} == {0: status}
    assert "label" in good


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "sent",
    [
        plain(b"good"),
        plain(MARK + b"good"),
        plain(MARK + b"good", "text/plain; charset=utf-8"),
        plain(b'{"text": "good"}', "application/json"),
        plain(MARK + b'{"text": "good"}', "application/json; charset=UTF-8"),
        plain(MARK + b'{"text": "good"}'),
        plain(MARK + b'{"text": "good"}', "application/octet-stream"),
        form(("text", "", b"good")),
        form(("text", "text/plain", MARK + b"good")),
        form(("data", "", b"good")),
        form(("data", "application/json", b'{"text": "good"}')),
        form(("body", "application/octet-stream", b'{"text": "good"}')),
        Sent(values=[("body", "", b'{"text": "good"}')]),  # gRPC has no headers
    ],
)
def test_one_text_gets_one_answer_however_it_is_sent(handler, tiny_text, sent):
    rows, context = rows_and_context(tiny_text, sent)
    (answer,) = handler.handle(rows, context)
    assert answer == handler.handle([{"body": b"good"}], FakeContext(tiny_text))[0]


def test_only_what_is_read_of_a_text_is_kept_while_its_batch_waits(handler):
    tokens = handler.decode(Request(content=("word \N{GRINNING FACE} " * 100_000).encode()))
    assert (tokens.characters_read, tokens.characters, len(tokens.ids)) == (640, 700_000, 32)


def test_the_largest_batch_is_timed_and_shown(handler):
    work = handler.describe()["work"]
    assert 0 < work["seconds_each"] < 0.01
    assert work["per_request"] == 4 * 32
    assert work["per_request"] <= work["per_batch"] <= handler.limits["tokens_per_batch"]
    assert work["worst_batch_s"] == pytest.approx(work["per_batch"] * work["seconds_each"], abs=0.001)


def test_what_the_plan_leaves_no_room_for_is_rejected_and_the_rest_answered(tiny_text, monkeypatch):
    limits = {"tokens_per_batch": 128, "batch_s": 30}
    monkeypatch.setenv("CPU_KIT_OPTIONS", json.dumps({"tiny_text": {"limits": limits}}))
    handler = TextClassifier()
    handler.initialize(FakeContext(tiny_text))
    full = {"text": ["word " * 30] * 4}
    (first, second, small), context = ask(handler, tiny_text, full, full, "good")
    assert len(first) == 4
    assert second["error"] == (
        "the requests before this one leave no room for its 128 tokens: 128 of 128 are taken; send it again"
    )
    assert context.statuses == {1: (503, "Service Unavailable"), 2: (503, "Service Unavailable")}
    assert small["code"] == 503


def test_the_packing_efficiency_of_a_batch_is_counted(tiny_text):
    handler = TextClassifier()
    handler.initialize(FakeContext(tiny_text))
    ask(handler, tiny_text, "word " * 6, {"text": ["word " * 14, "word " * 20]}, b"\xff", "word " * 30)
    # Two special tokens each; what does not fit into 32 tokens is cut; 22 and 8 share a row.
    described = handler.describe()["packing_efficiency"]
    assert described == {"runs": 3, "tokens": 8 + 16 + 22 + 32, "computed_tokens": 80, "share": 0.975}


def test_without_buckets_a_batch_is_run_whole_and_padded_to_its_longest(tiny_text, monkeypatch):
    texts = ["word", "word " * 9, "word " * 17]
    monkeypatch.setenv("CPU_KIT_OPTIONS", json.dumps({"tiny_text": {"off": ["buckets"]}}))
    baseline, handler = TextClassifier(), TextClassifier()
    baseline.initialize(FakeContext(tiny_text))
    monkeypatch.delenv("CPU_KIT_OPTIONS")
    handler.initialize(FakeContext(tiny_text))
    for got, expected in zip(
        ask(baseline, tiny_text, *texts)[0], ask(handler, tiny_text, *texts)[0], strict=True
    ):
        assert got["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert baseline.describe()["packing_efficiency"] == {
        "runs": 1, "tokens": 3 + 11 + 19, "computed_tokens": 3 * 19, "share": pytest.approx(0.5789),
    }  # fmt: skip
