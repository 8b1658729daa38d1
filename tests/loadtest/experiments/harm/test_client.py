"""The client tells an answer from a reset, a refusal and silence, also where the answer comes early."""

from __future__ import annotations

import contextlib
import importlib
import socket
import time

import pytest

from loadtest.experiments.harm.client import (
    REFUSED,
    RESET,
    SILENT,
    Connection,
    Outcome,
    Request,
    hold_open,
    parse_answer,
    send_all,
)

rude = importlib.import_module("tests.loadtest.experiments.harm.rude_server")
LARGE = Request(path="/predictions/x", body=b"\0" * 12_000_000, content_type="image/png", token="t")
SMALL = Request(path="/predictions/x", body=b"abc")


def send(behave, request=SMALL, seconds=60.0):
    with rude.serving(behave) as port, contextlib.closing(Connection(port, seconds=seconds)) as connection:
        return connection.send(request)


@pytest.mark.parametrize("behave", [rude.answer_early, rude.answer_early_and_reset])
def test_an_answer_before_the_body_is_whole_is_an_answer(behave):
    outcome = send(behave, LARGE)
    assert (outcome.kind, outcome.body) == ("503", b"busy")


def test_a_whole_body_is_sent_and_the_answer_read():
    assert send(rude.answer_once, LARGE).kind == "200"


@pytest.mark.parametrize(
    ("behave", "kind"),
    [
        (rude.reset_at_once, RESET),
        (rude.end_at_once, RESET),
        (rude.answer_half_and_end, RESET),
        (rude.answer_until_the_end, "200"),
        (rude.answer_in_chunks, "200"),
    ],
)
def test_what_became_of_a_request(behave, kind):
    assert send(behave).kind == kind


def test_a_reset_while_sending_is_a_reset():
    assert send(rude.reset_at_once, LARGE).kind == RESET


def test_silence_is_told_after_the_time():
    began = time.monotonic()
    outcome = send(rude.say_nothing, seconds=0.3)
    assert outcome.kind == SILENT
    assert 0.3 <= outcome.seconds <= time.monotonic() - began < 30


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert Connection(port).send(SMALL).kind == REFUSED


def test_a_body_without_a_length_is_read_to_its_end():
    assert send(rude.answer_until_the_end).body == b"all of it"


def test_a_connection_is_kept_while_the_server_keeps_it():
    heads = []

    def count(link):
        heads.append(link)
        rude.answer_all(link)

    with rude.serving(count) as port:
        outcomes = send_all([SMALL] * 20, port, clients=2, keep=True)
    assert [one.kind for one in outcomes] == ["200"] * 20
    assert 1 <= len(heads) <= 2


def test_a_kept_connection_that_ended_meanwhile_is_no_reset():
    with rude.serving(rude.answer_once) as port:
        connection = Connection(port)
        kinds = []
        for _ in range(3):
            kinds.append(connection.send(SMALL).kind)
            time.sleep(0.05)
    assert kinds == ["200"] * 3


def test_a_server_that_resets_each_time_is_told_on_a_kept_connection_too():
    seen = []

    def once(link):
        seen.append(link)
        rude.answer_once(link) if len(seen) == 1 else rude.reset_at_once(link)

    with rude.serving(once) as port:
        connection = Connection(port)
        assert [connection.send(SMALL).kind for _ in range(2)] == ["200", RESET]


def test_outcomes_come_in_the_order_of_the_requests():
    def echo(link):
        body = rude.read_request(link).partition(b"\r\n\r\n")[2]
        time.sleep(0.05 if body == b"0" else 0)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    requests = [Request(path="/", body=str(number).encode()) for number in range(12)]
    with rude.serving(echo) as port:
        outcomes = send_all(requests, port, clients=4)
    assert [one.body for one in outcomes] == [one.body for one in requests]


def test_no_request_is_begun_after_the_time():
    with rude.serving(rude.say_nothing) as port:
        outcomes = send_all([SMALL] * 10, port, clients=2, seconds=0.7, at_most_s=1.0)
    assert 2 <= len(outcomes) <= 4


def test_after_an_interruption_nothing_more_is_sent(monkeypatch):
    begun = []

    def send(self, request):
        begun.append(request)
        if len(begun) == 1:
            raise KeyboardInterrupt
        time.sleep(0.05)
        return Outcome(status=200)

    monkeypatch.setattr(Connection, "send", send)
    with pytest.raises(KeyboardInterrupt):
        send_all([SMALL] * 1000, 1, clients=2)
    assert len(begun) < 100


def test_a_head_says_what_was_asked_for():
    request = Request(
        path="/p", body=b"abc", content_type="text/plain", token="secret", headers=(("describe", "True"),)
    )
    assert request.render_head().decode().split("\r\n") == [
        "POST /p HTTP/1.1", "Host: 127.0.0.1", "Authorization: Bearer secret", "Content-Type: text/plain",
        "Content-Length: 3", "describe: True", "", "",
    ]  # fmt: skip
    assert Request(path="/p").render_head() == b"GET /p HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("behave", "seconds", "fate"),
    [(rude.say_nothing, 0.5, "open"), (rude.answer_early, 60, "503"), (rude.reset_at_once, 60, "reset")],
)
def test_a_half_sent_body_is_held_open_or_its_fate_told(behave, seconds, fate):
    with rude.serving(behave) as port:
        link, found = hold_open(LARGE.render_head(), [LARGE.body[:-1]], port, seconds=seconds)
        link.close()
    assert found == fate


@pytest.mark.parametrize("size", [0, 10, 38, 39])
def test_half_an_answer_is_none(size):
    assert parse_answer(rude.FINE[:size], ended=True) is None


def test_a_whole_answer_is_one():
    assert parse_answer(rude.FINE, ended=False).body == b"ok"
