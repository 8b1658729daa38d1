"""The agent's gate (server/agent), compiled and run in front of a stub: what a client on a socket gets."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from setup.agent import SOURCES

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None or importlib.util.find_spec("ts") is None,
    reason="needs javac and torchserve, which `make dev` installs",
)

STUB = Path(__file__).parent / "agent/Stub.java"
BODIES, CONNECTIONS, LARGEST = 3 << 20, 24, 2 << 20
TOKEN = "Authorization: Bearer good\r\n"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the stub prints: its port, and its log."""
    return tmp_path_factory.mktemp("stub") / "printed"


@pytest.fixture(scope="module")
def port(printed):
    classes = printed.parent
    server = Path(importlib.util.find_spec("ts").origin).parent / "frontend/model-server.jar"
    sources = [str(file) for file in (*SOURCES.rglob("*.java"), STUB)]
    javac = ["javac", "-nowarn", "-XDignore.symbol.file", "-d", str(classes), "-cp", str(server), *sources]
    subprocess.run(javac, check=True, capture_output=True)
    numbers = [str(number) for number in (BODIES, CONNECTIONS, LARGEST)]
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{server}", "cpukit.Stub", *numbers]
    with printed.open("wb") as sink:
        process = subprocess.Popen(command, cwd=classes, stdout=sink, stderr=subprocess.STDOUT)
    try:
        yield read_port(process, printed)
    finally:
        process.kill()
        process.wait()


def read_port(process, printed):
    """The stub's one line of a number; log lines stand around it."""
    while not (found := re.search(r"^(\d+)$", printed.read_text(), re.MULTILINE)):
        assert process.poll() is None, printed.read_text()
        time.sleep(0.05)
    return int(found[1])


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def error(self):
        return json.loads(self.body)["error"]


class Peer:
    """One connection, used by hand."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.reader = self.socket.makefile("rb")

    def send(self, head, body=b""):
        self.socket.sendall(head.encode() + b"\r\n" + body)

    def read(self):
        status = int(self.reader.readline().split()[1])
        lines = iter(lambda: self.reader.readline().decode().strip(), "")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = self.reader.read(int(headers.get("content-length", 0))).decode()
        return Answer(status, headers, body)

    def is_closed(self):
        """Closed in order: a reset would raise."""
        return self.reader.read(1) == b""


@pytest.fixture
def connect(port):
    with contextlib.ExitStack() as at_end:

        def make():
            peer = Peer(port)
            at_end.callback(peer.socket.close)
            at_end.callback(peer.reader.close)
            return peer

        yield make


def head(path="/predictions/m", *, length=0, kind="image/png", token=TOKEN, more=""):
    lines = f"POST {path} HTTP/1.1\r\nHost: h\r\n{token}Content-Type: {kind}\r\n"
    return f"{lines}Content-Length: {length}\r\n{more}"


def ask(peer, path="/predictions/m", body=b"", **options):
    peer.send(head(path, length=len(body), **options), body)
    return peer.read()


def ask_until(peer_of, wanted, path="/predictions/m", body=b""):
    """The server learns of a closed connection a moment later."""
    deadline = time.monotonic() + 60
    while True:
        peer = peer_of()
        answer = ask(peer, path, body)
        peer.reader.close()
        peer.socket.close()
        if answer.status == wanted or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


def enter(connect, path, body):
    """A large request that was let in and waits; the room of others may come free a moment later."""
    while True:
        peer = connect()
        peer.send(head(path, length=LARGEST, more="Expect: 100-continue\r\n"))
        if (status := peer.read().status) == 100:
            peer.socket.sendall(body)
            return peer
        assert status == 503
        peer.socket.close()


def test_bodies_of_every_size_arrive_whole_on_one_connection(connect):
    peer = connect()
    for size in (0, 1, 65_536, 65_537, LARGEST):
        assert ask(peer, body=b"x" * size).body == f"{size} null 1"


@pytest.mark.parametrize(
    ("version", "more", "kept"),
    [
        ("HTTP/1.1", "", True),
        ("HTTP/1.1", "Connection: close\r\n", False),
        ("HTTP/1.0", "", False),
        ("HTTP/1.0", "Connection: keep-alive\r\n", True),
    ],
)
def test_a_connection_ends_with_the_answer_where_its_client_waits_for_that(connect, version, more, kept):
    peer = connect()
    peer.send(head(length=1, more=more).replace("HTTP/1.1", version), b"a")
    answer = peer.read()
    assert (answer.status, answer.headers.get("connection") == "close") == (200, not kept)
    assert ask(peer).status == 200 if kept else peer.is_closed()


def test_a_body_of_untold_length_arrives_whole(connect):
    peer = connect()
    chunk = b"186a0\r\n" + b"y" * 100_000 + b"\r\n"
    for count in (0, 1, 7):
        chunked = head().replace("Content-Length: 0", "Transfer-Encoding: chunked")
        peer.send(chunked, chunk * count + b"0\r\n\r\n")
        assert peer.read().body == f"{count * 100_000} null 1"


@pytest.mark.parametrize("token", ["", "Authorization: Bearer bad\r\n", "Authorization: good\r\n"])
def test_without_a_token_nothing_of_the_body_is_waited_for(connect, token):
    peer = connect()
    peer.send(head(length=LARGEST, token=token), b"half")
    answer = peer.read()
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "bearer")
    assert answer.error == "no valid token: send the header Authorization: Bearer <token>; see make status"
    assert answer.headers["x-request-id"]


def read_refusals(printed, status):
    """The log's lines of refusals with this status."""
    lines = [line for line in printed.read_text().splitlines() if f'"status":{status}' in line]
    return [json.loads(line.partition(" - ")[2]) for line in lines]


def test_strangers_cannot_fill_the_logs(connect, printed):
    """A line a second; those that had none are counted in the next one."""
    before, began = len(read_refusals(printed, 401)), time.monotonic()
    for _ in range(50):
        assert ask(connect(), token="").status == 401
    lines = len(read_refusals(printed, 401)) - before
    assert lines <= min(2 + time.monotonic() - began, 40)
    time.sleep(1.1)
    assert ask(connect(), token="").status == 401
    logged = read_refusals(printed, 401)[before:]
    assert len(logged) + sum(line["others_unlogged"] for line in logged) >= 51


def test_a_refused_body_is_read_to_its_end_so_that_nobody_is_cut_off(connect):
    peer = connect()
    peer.send(head(length=LARGEST, token=""), b"x" * LARGEST)
    assert peer.read().status == 401
    assert peer.is_closed()


def test_what_is_too_large_is_refused_by_its_head(connect):
    peer = connect()
    peer.send(head(length=LARGEST + 1))
    answer = peer.read()
    assert (answer.status, answer.error) == (413, f"the body may have {LARGEST} bytes: got {LARGEST + 1}")


def test_an_endless_body_is_refused_where_it_gets_too_large(connect):
    peer = connect()
    peer.send(head().replace("Content-Length: 0", "Transfer-Encoding: chunked"))
    with contextlib.suppress(ConnectionError):
        for _ in range(LARGEST // 50_000 + 2):
            peer.socket.sendall(b"c350\r\n" + b"y" * 50_000 + b"\r\n")
    assert peer.read().status == 413


def test_a_client_that_asks_first_is_told_to_go_on_or_not(connect):
    peer = connect()
    peer.send(head(length=4, more="Expect: 100-continue\r\n"))
    assert peer.read().status == 100
    peer.socket.sendall(b"body")
    assert peer.read().body == "4 null 1"
    refused = connect()
    refused.send(head(length=4, token="", more="Expect: 100-continue\r\n"))
    assert refused.read().status == 401
    assert refused.is_closed()


def test_bodies_together_have_a_bound_and_small_ones_keep_a_share(connect):
    large = b"x" * LARGEST
    first = enter(connect, "/predictions/hold", large)
    while not ask(connect(), "/predictions/held").body.startswith("1 "):
        time.sleep(0.02)
    full = ask_until(connect, 503, body=large)
    assert full.headers["retry-after"] == "1"
    assert full.error == (
        "the bodies of waiting requests fill the memory that is planned for them; try again"
    )
    assert ask(connect(), body=b"x" * 1000).status == 200
    assert ask(connect(), "/predictions/release").status == 200
    assert first.read().status == 200
    assert ask_until(connect, 200, body=large).status == 200


@pytest.mark.parametrize("sent", [10, LARGEST])
def test_a_client_that_leaves_gives_its_room_back(connect, sent):
    gone = connect()
    gone.send(head("/predictions/100", length=LARGEST), b"x" * sent)
    gone.reader.close()
    gone.socket.close()
    assert ask_until(connect, 200, body=b"x" * LARGEST).status == 200


def test_slow_bodies_make_room_for_others(connect):
    slow = enter(connect, "/predictions/m", b"a little")
    time.sleep(0.3)
    assert ask_until(connect, 200, body=b"x" * LARGEST).status == 200
    answer = slow.read()
    assert (answer.status, answer.error) == (408, "the body came too slowly; send it again")


def test_answers_keep_the_order_of_their_requests(connect):
    peer = connect()
    peer.send(head("/predictions/300", length=1), b"a" + head(length=2).encode() + b"\r\nbb")
    assert [peer.read().body, peer.read().body] == ["1 null 1", "2 null 1"]


def let_in(connect):
    """One more connection; those of earlier tests may be gone a moment later."""
    deadline = time.monotonic() + 60
    while ask(peer := connect()).status != 200:
        assert time.monotonic() < deadline
    return peer


def test_connections_have_a_bound(connect):
    peers = [let_in(connect) for _ in range(CONNECTIONS)]
    one_more = connect()
    answer = ask(one_more, body=b"x" * LARGEST)
    assert (answer.status, answer.error) == (503, "too many connections are open; close some, or try again")
    assert one_more.is_closed()
    for peer in peers:
        peer.reader.close()
        peer.socket.close()
    assert ask_until(connect, 200).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/models/m/invoke", 404),
        ("/predictions/%zz", 400),
        ("/predictions/m?a=%", 400),
        ("/ping", 200),
    ],
)
def test_paths_that_torchserve_cannot_serve_are_refused(connect, path, status):
    assert ask(connect(), path).status == status


def test_forms_in_curls_default_type_are_refused_with_lines_that_work(connect):
    answer = ask(connect(), body=b"a&" * 1000, kind="application/x-www-form-urlencoded")
    assert answer.status == 415
    for line in ("curl -T photo.jpg", "curl -F data=@photo.jpg", "-H 'Content-Type: application/json'"):
        assert line in answer.error


def form(fields, ended=True):
    parts = "".join(f'--B\r\nContent-Disposition: form-data; name="f{i}"\r\n\r\nv\r\n' for i in range(fields))
    return (parts + ("--B--\r\n" if ended else "")).encode()


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (form(1), "multipart/form-data; boundary=B", 200),
        (form(16), 'multipart/form-data; boundary="B"', 200),
        (form(17), "multipart/form-data; boundary=B", 413),
        (form(50_000), "multipart/form-data; boundary=B", 413),
        (form(1), "multipart/form-data", 415),
        (form(1), "multipart/mixed; boundary=B", 415),
        (form(0), "multipart/form-data; boundary=B", 400),
        (b"\x00\xff\r\n" * 100, "multipart/form-data; boundary=B", 400),
        (b"", "multipart/form-data; boundary=B", 400),
    ],
)
def test_forms_are_read_before_torchserve_reads_them(connect, body, kind, status):
    answer = ask(connect(), body=body, kind=kind)
    assert answer.status == status
    if status == 200:
        assert answer.body == f"{body.count(b'v')} null 1"  # each field's value is all that TorchServe takes


def test_only_torchserve_itself_asks_a_worker_to_describe_itself(connect):
    assert ask(connect(), more="describe: True\r\n").body == "0 null 1"


def test_torchserves_own_503_says_when_to_come_back(port, connect):
    # The stub's handler behind the gate answers so.
    answer = ask(connect(), "/predictions/full")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    "text", [b"\x16\x03\x01 tls?\r\n\r\n", b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_gets_an_answer_too(connect, text):
    peer = connect()
    peer.socket.sendall(text)
    assert peer.read().status in (400, 401)
    assert peer.is_closed()


def test_an_ending_server_refuses_what_comes_and_answers_what_was_there(connect):
    waiting = enter(connect, "/predictions/1500", b"x" * LARGEST)
    ask(connect(), "/predictions/drain")  # the last test: there is no way back
    answer = ask(connect())
    assert (answer.status, answer.error) == (503, "the server is ending; try again")
    assert waiting.read().status == 200
