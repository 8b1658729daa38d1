"""One request of a batch fails in each stage, in each way: it alone gets an error, and a line in the log."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

import pytest

from handlers.shared.errors import RequestError
from handlers.shared.replies import fail, to_json
from handlers.shared.rows import read_body
from handlers.shared.torchserve import FillReport, TorchServeHandler
from tests.handlers.context import plain, rows_and_context
from tests.handlers.stub import StubClassifier, make_runtime

BAD = 77
SECRET = "what the client sent"


class Panic(BaseException):
    """As pyo3 raises it for a panic in Rust: no Exception."""


class Handler(StubClassifier, TorchServeHandler):
    """The stub behind TorchServe's interface."""


@pytest.fixture
def handler(caplog) -> Handler:
    caplog.set_level(logging.INFO, logger="cpu_kit")
    loaded = Handler()
    loaded.runtime = make_runtime(loaded)
    loaded.fill_report = FillReport()
    return loaded


def ask(handler: Handler, tmp_path, *bodies: bytes):
    rows, context = rows_and_context(tmp_path, *(plain(body) for body in bodies))
    answers = [json.loads(answer) for answer in handler.handle(rows, context)]
    statuses = {position: code for position, (code, _) in context.statuses.items()}
    return answers, statuses


def plant(handler: Handler, stage: str, error: BaseException) -> None:
    def raise_for_the_bad_one(where: str, value: Any) -> None:
        if where == stage and value in (BAD, str(BAD).encode()):
            raise error

    handler.planted = raise_for_the_bad_one


def read_log(caplog, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "cpu_kit"]
    return [line for line in lines if line["cpu_kit"] == event]


@pytest.mark.parametrize("stage", ["read", "encode", "model", "to_answer"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError(SECRET * 100), 500),
        (Panic("a tokenizer panicked"), 500),
        (MemoryError(), 413),
        (RequestError("this one is wrong", status=422), 422),
    ],
)
def test_a_request_that_raises_fails_alone(handler, tmp_path, caplog, stage, error, status):
    plant(handler, stage, error)
    answers, statuses = ask(handler, tmp_path, b"20", b"77", b"30 40", b"500")
    assert statuses == {1: status}
    assert answers[1]["code"] == status
    assert [answers[0]["tokens"], answers[2][1]["tokens"], answers[3]["tokens"]] == [20, 40, 500]
    (line,) = read_log(caplog, "request_failed")
    assert (line["request"], line["status"], line["model"]) == ("id-1", status, "stub")
    assert line["cause"]
    assert ("trace" in line) == (status == 500)
    assert len(line["cause"]) <= 200


def test_the_trace_says_where_and_the_answer_only_what(handler, tmp_path, caplog):
    plant(handler, "to_answer", KeyError("label"))
    (answer,), _ = ask(handler, tmp_path, b"77")
    assert answer == {"code": 500, "error": "the request could not be answered: KeyError"}
    (line,) = read_log(caplog, "request_failed")
    assert line["cause"] == "KeyError: 'label'"
    assert line["trace"].endswith("raise_for_the_bad_one")
    assert "stub.py" in line["trace"]
    assert read_log(caplog, "batch_failed") == [], "there was no batch to try again"


def test_a_batch_that_is_tried_again_is_logged(handler, tmp_path, caplog):
    plant(handler, "model", RuntimeError("planted"))
    ask(handler, tmp_path, b"20", b"77")
    (line,) = read_log(caplog, "batch_failed")
    assert (line["requests"], line["cause"]) == (2, "RuntimeError: planted")


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_what_ends_the_process_is_not_held_up(handler, tmp_path, error):
    plant(handler, "model", error)
    with pytest.raises(type(error)):
        ask(handler, tmp_path, b"20", b"77")


def test_a_number_that_is_none_is_an_error_and_never_leaves(handler, tmp_path, caplog):
    answers, statuses = ask(handler, tmp_path, b"20", b"13", b"40")
    assert statuses == {1: 500}
    assert answers[1]["error"] == "the model's outputs are no numbers (NaN or infinite)"
    assert [answers[0]["tokens"], answers[2]["tokens"]] == [20, 40]
    assert len(read_log(caplog, "request_failed")) == 1
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"probability": float("nan")})


def test_a_request_that_is_wrong_leaves_one_line_too(handler, tmp_path, caplog):
    _, statuses = ask(handler, tmp_path, b"20", b" ")
    assert statuses == {1: 400}
    (line,) = read_log(caplog, "request_failed")
    assert (line["request"], line["status"], line["cause"]) == ("id-1", 400, "the body is empty")


def test_a_good_batch_leaves_no_line(handler, tmp_path, caplog):
    _, statuses = ask(handler, tmp_path, b"20", b"30")
    assert statuses == {}
    assert [record for record in caplog.records if record.name == "cpu_kit"] == []


def test_a_status_that_cannot_be_set_fails_one_item(handler, tmp_path, caplog):
    rows, context = rows_and_context(tmp_path, plain(b"20"), plain(b"30"))
    set_header = context.set_response_header

    def refuse_once(position: int, key: str, value: str) -> None:
        if position == 0:
            context.set_response_header = set_header
            raise RuntimeError("planted")
        set_header(position, key, value)

    context.set_response_header = refuse_once
    bad, good = map(json.loads, handler.handle(rows, context))
    assert bad["code"] == 500
    assert good["tokens"] == 30
    assert context.statuses == {0: (500, HTTPStatus(500).phrase)}
    assert len(read_log(caplog, "request_failed")) == 1


def test_counters_that_cannot_be_sent_lose_no_batch(handler, tmp_path, caplog, monkeypatch):
    def explode(*_: Any) -> None:
        raise RuntimeError("planted")

    rows, context = rows_and_context(tmp_path, plain(b"20"))
    monkeypatch.setattr(context.metrics, "add_counter", explode)
    for _ in range(3):
        (answer,) = handler.handle(rows, context)
        assert json.loads(answer)["tokens"] == 20
    assert context.statuses == {}
    (line,) = read_log(caplog, "metrics_failed")  # once a second at most
    assert line["cause"] == "RuntimeError: planted"


@pytest.mark.parametrize("status", [400, 413, 415, 422, 429, 500, 503])
def test_each_status_has_its_phrase(handler, tmp_path, status):
    plant(handler, "read", RequestError("planted", status=status))
    rows, context = rows_and_context(tmp_path, plain(b"77"))
    handler.handle(rows, context)
    assert context.statuses == {0: (status, HTTPStatus(status).phrase)}


def test_half_a_surrogate_pair_in_an_error_is_json():
    reply = fail(RequestError("got \ud800"), "read")
    assert json.loads(reply.body)["error"] == "got \ud800"


@pytest.mark.parametrize("name", ["Content-Type", "content-type", "CONTENT-TYPE"])
def test_the_content_type_is_found_in_any_case(tmp_path, name):
    rows, context = rows_and_context(tmp_path, plain(b"x", "Text/Plain; Charset=UTF-8", header=name))
    body = read_body(rows[0], context.get_all_request_header(0))
    assert (body.content, body.content_type, body.charset) == (b"x", "text/plain", "utf-8")
