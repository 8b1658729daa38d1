"""Every line of the log is one JSON object, whoever wrote it."""

from __future__ import annotations

import io
import json

import pytest

from docker.lines import Speaker, is_routine, parse_haproxy, parse_torchserve

LINE = "2025-01-01T12:00:00,250 [WARN ] W-9000-resnet50_1.0-stderr MODEL_LOG - 2025 - x - told - so"


def test_a_line_of_torchserve_is_taken_apart():
    assert parse_torchserve(LINE) == {
        "time": "2025-01-01T12:00:00.250Z",
        "level": "warning",
        "thread": "W-9000-resnet50_1.0-stderr",
        "logger": "MODEL_LOG",
        "message": "2025 - x - told - so",
    }


def test_a_line_of_a_stack_trace_is_a_message():
    assert parse_torchserve("\tat java.base/x(y:1)") == {"message": "\tat java.base/x(y:1)"}


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("[NOTICE]   (9) : New worker (11) forked", {"level": "info", "message": "New worker (11) forked"}),
        ("[ALERT]    (9) : Starting: no", {"level": "error", "message": "Starting: no"}),
        ("[WARNING]  (9) : a : b", {"level": "warning", "message": "a : b"}),
        ("1.2.3.4 [22/Nov/2026:09:00:00.000] door a.door/a 0/0", None),
    ],
)
def test_a_line_of_haproxy_has_its_own_level_and_one_of_a_request_none(line, fields):
    assert parse_haproxy(line) == (fields or {"message": line})


@pytest.mark.parametrize("message", ['quotes " and \\', "two\nlines", "Größe ≤ 1"])
def test_whatever_is_said_stays_one_line_of_json(message):
    stream = io.StringIO()
    Speaker(stream=stream).say("server", message, "error", cause="x")
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert (said["message"], said["level"], said["source"], said["cause"]) == (
        message,
        "error",
        "server",
        "x",
    )
    assert said["time"].endswith("Z")


def test_what_is_printed_again_and_again_is_not_passed_on():
    assert is_routine("Backend received inference at: 1795238192")
    assert is_routine("Proxy resnet50.large.door stopped (cumulated conns: FE: 0, BE: 4).")
    assert not is_routine("load_failed")
