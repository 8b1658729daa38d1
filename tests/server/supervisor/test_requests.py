"""Lines of HAProxy as they come, and what becomes of them."""

from __future__ import annotations

import json
import os

import pytest

from server.supervisor.requests import (
    ANSWERED,
    BAD_REQUEST,
    CLIENT_GONE,
    DEADLINE,
    INSTANCE_FAILED,
    PIPE_BYTES,
    QUEUE_FULL,
    REASONS,
    TOKEN,
    TOO_LARGE,
    RequestLog,
    RequestPipe,
    parse_line,
)

ID, TRACE = "5f6c1b7e-0d3a-4a44-9f0a-a1b2c3d4e5f6", "4bf92f3577b34da6a3ce929d0e0e4736"


def make_line(front="proxy", back="bert.entry", server="queue", status=200, ended="----", times="0/0/31/31",
              path="/predictions/bert", named="-", cause="-", trace="-"):  # fmt: skip
    request = f"10.0.0.7 {ID} {trace} POST {path} {named} {cause}"
    return f"request {front} {back} {server} {status} {ended} {times.replace('/', ' ')} {request}"


SECOND = {"front": "bert.queue", "back": "bert", "server": "a1", "times": "0/12/18/30"}


@pytest.mark.parametrize(
    ("given", "model", "status", "reason"),
    [
        ({}, "bert", 200, ANSWERED),
        ({"front": "proxy~", "back": "bert.large.entry"}, "bert", 200, ANSWERED),
        ({"status": 400, "cause": 'the request has no \\"text\\"'}, "bert", 400, BAD_REQUEST),
        ({"back": "proxy", "server": "<NOSRV>", "status": 401, "ended": "PR--"}, "", 401, TOKEN),
        ({"server": "<NOSRV>", "status": 413, "ended": "PR--"}, "bert", 413, TOO_LARGE),
        ({"server": "<NOSRV>", "status": 503, "ended": "PR--", "named": QUEUE_FULL}, "bert", 503, QUEUE_FULL),
        ({"status": 504, "ended": "sH--"}, "bert", 504, DEADLINE),
        ({"status": 502, "ended": "SH--"}, "bert", 502, INSTANCE_FAILED),
        ({"status": 500}, "bert", 500, INSTANCE_FAILED),
        ({"status": 500, "named": "of-a-foreign-archive"}, "bert", 500, INSTANCE_FAILED),
        ({"status": -1, "ended": "CD--"}, "bert", 499, CLIENT_GONE),
        ({"back": "proxy~", "server": "<NOSRV>", "status": 404, "ended": "PR--"}, "", 404, BAD_REQUEST),
    ],
)
def test_the_first_hop_says_what_the_client_got(given, model, status, reason):
    line = parse_line(make_line(**given))
    assert line is not None
    assert (line.model, line.status, line.reason, line.second) == (model, status, reason, False)
    assert line.reason in REASONS
    assert line.failed == (reason != ANSWERED)
    assert (line.client, line.request, line.method) == ("10.0.0.7", ID, "POST")


def test_the_second_hop_says_where_the_time_went():
    line = parse_line(make_line(**SECOND))
    assert line is not None
    assert (line.model, line.second, line.queue_ms, line.instance_ms) == ("bert", True, 12.0, 18.0)
    unserved = parse_line(make_line(**{**SECOND, "server": "<NOSRV>", "times": "0/90/-1/90", "status": 503}))
    assert unserved is not None
    assert unserved.queue_ms is unserved.instance_ms is None


@pytest.mark.parametrize(
    "text",
    [
        "", "request", "Server bert/a1 is DOWN", make_line().replace(" 200 ", " two "),
        make_line(back="supervisor", server="supervisor"), make_line(front="metrics"),
    ],
)  # fmt: skip
def test_what_is_no_prediction_is_no_line(text):
    assert parse_line(text) is None


@pytest.mark.parametrize("log", ["text", "json"])
def test_a_failure_is_one_entry_with_the_times_of_both_hops(tmp_path, log):
    file, told = tmp_path / "requests.log", []
    requests = RequestLog(file, log, told.append)
    lines = [
        make_line(), make_line(**SECOND, status=500),
        make_line(status=500, cause="ValueError: no number", trace=TRACE), "Server bert/a1 is DOWN.",
    ]  # fmt: skip
    assert len([*requests.take(iter(lines))]) == 3
    assert told == ["proxy: Server bert/a1 is DOWN."]
    (entry,) = file.read_text().splitlines()
    if log == "json":
        found = json.loads(entry)
        wanted = {
            "level": "ERROR", "source": "proxy", "request": ID, "trace_id": TRACE, "model": "bert",
            "status": 500, "reason": INSTANCE_FAILED, "total_ms": 31, "queue_ms": 12.0, "instance_ms": 18.0,
            "client": "10.0.0.7", "message": "ValueError: no number",
        }  # fmt: skip
        assert {key: found[key] for key in wanted} == wanted
    else:
        for part in (
            ID,
            TRACE,
            "500 instance_failed",
            "ValueError: no number",
            "31 ms, 12 queue, 18 instance",
        ):
            assert part in entry


def test_lines_come_whole_through_the_pipe_and_none_waits():
    pipe = RequestPipe()
    assert [*pipe.read_lines()] == []
    os.write(pipe.write_end, b"one\ntw")
    assert [*pipe.read_lines()] == ["one"]
    os.write(pipe.write_end, b"o\n" + b"x" * 1000 + b"\n")
    assert [*pipe.read_lines()] == ["two", "x" * 1000]
    os.set_blocking(pipe.write_end, False)
    line, sent = b"y" * 255 + b"\n", 0
    while True:
        try:
            sent += os.write(pipe.write_end, line)
        except BlockingIOError:
            break
    assert sent >= PIPE_BYTES * 0.9  # what a turn of the supervisor may miss
    assert len([*pipe.read_lines()]) == sent // len(line)
