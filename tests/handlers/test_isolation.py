"""One request of a batch fails in each stage, in each way: it alone gets an error, and its cause is told."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from handlers.kit_handler import CAUSE
from handlers.replies import to_json
from handlers.shared.errors import BadRequest
from tests.handlers.context import plain, rows_and_context
from tests.handlers.stub import StubHandler, take_stub

BAD = 77
SECRET = "what the client sent"


class Panic(BaseException):
    """As pyo3 raises it for a panic in Rust: no Exception."""


@pytest.fixture
def handler(caplog) -> StubHandler:
    caplog.set_level(logging.INFO, logger="cpu_kit")
    return take_stub(StubHandler())


def ask(handler: StubHandler, tmp_path, *bodies: bytes):
    """(answers, statuses, causes): of those that failed, as HAProxy gets them for its log."""
    sent = (plain(body, **{"x-request-id": f"id-{number}"}) for number, body in enumerate(bodies))
    rows, context = rows_and_context(tmp_path, *sent)
    answers = [json.loads(answer) for answer in handler.handle(rows, context)]
    statuses = {position: code for position, (code, _) in context.statuses.items()}
    headers = [context.get_response_headers(position) for position in range(len(bodies))]
    return answers, statuses, {place: one[CAUSE] for place, one in enumerate(headers) if CAUSE in one}


def plant(handler: StubHandler, stage: str, error: BaseException) -> None:
    def raise_for_the_bad_one(where: str, value: Any) -> None:
        if where == stage and value in (BAD, str(BAD).encode()):
            raise error

    handler.planted = raise_for_the_bad_one


def read_log(caplog, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "cpu_kit"]
    return [line for line in lines if line["cpu_kit"] == event]


@pytest.mark.parametrize("stage", ["decode", "collate", "model", "split", "encode"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError(SECRET * 100), 500),
        (Panic("a tokenizer panicked"), 500),
        (MemoryError(), 413),
        (BadRequest(422, "this one is wrong"), 422),
    ],
)
def test_a_request_that_raises_fails_alone(handler, tmp_path, caplog, stage, error, status):
    plant(handler, stage, error)
    answers, statuses, causes = ask(handler, tmp_path, b"20", b"77", b"30 40", b"500")
    assert statuses == {1: status}
    assert answers[1]["code"] == status
    assert [answers[0]["tokens"], answers[2][1]["tokens"], answers[3]["tokens"]] == [20, 40, 500]
    assert causes.keys() == {1}
    assert 0 < len(causes[1]) <= 200
    lines = read_log(caplog, "request_failed")  # with where it comes from; what a client did wrong has none
    assert len(lines) == (status == 500)
    for line in lines:
        assert (line["request"], line["status"], line["model"]) == ("id-1", status, "stub")
        assert (line["cause"], bool(line["trace"])) == (causes[1], True)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_what_ends_the_process_is_not_held_up(handler, tmp_path, error):
    plant(handler, "model", error)
    with pytest.raises(type(error)):
        ask(handler, tmp_path, b"20", b"77")


def test_a_number_that_is_none_is_an_error_and_never_leaves(handler, tmp_path, caplog):
    answers, statuses, _ = ask(handler, tmp_path, b"20", b"13", b"40")
    assert statuses == {1: 500}
    assert answers[1]["error"] == "the model's outputs are no numbers (NaN or infinite)"
    assert [answers[0]["tokens"], answers[2]["tokens"]] == [20, 40]
    assert len(read_log(caplog, "request_failed")) == 1
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"probability": float("nan")})
