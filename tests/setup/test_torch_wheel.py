"""torch comes from the CPU-only index when that has the wheel, else from pip's own; an order is obeyed."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from setup.errors import SetupError
from setup.torch_wheel import (
    CPU_INDEX,
    check_index,
    choose_source,
    hide_credentials,
    offers_wheel,
    probe_index,
)

PAGE = """<a href="/whl/cpu/torch-2.7.1%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl">…</a>
<a href="/whl/cpu/torch-2.8.0%2Bcpu-cp311-cp311-manylinux_2_28_aarch64.whl">…</a>
<a href="/whl/cpu/torch-2.8.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=1">…</a>
<a href="/whl/cpu/torch-2.8.0%2Bcpu-cp313-cp313t-manylinux_2_28_x86_64.whl">…</a>
"""


class Index(BaseHTTPRequestHandler):
    """PyTorch's index as far as the probe sees it; /slow drips, /none knows nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            time.sleep(60)
        found = not self.path.startswith("/none")
        self.send_response(200 if found else 404)
        self.end_headers()
        if found:
            with contextlib.suppress(BrokenPipeError):  # the probe gave up
                self.wfile.write(PAGE.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.05), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    ("version", "python", "offered"),
    [
        ("2.8.0", (3, 11), True),
        ("2.8.0", (3, 13), False),  # only the free-threaded build
        ("2.7.1", (3, 11), True),
        ("2.9.0", (3, 11), False),
        ("2.8", (3, 11), False),
    ],
)
def test_the_wheel_is_found_on_the_page(version: str, python: tuple[int, int], offered: bool) -> None:
    assert offers_wheel(PAGE, version, python) is offered


def test_probe_finds_the_wheel(index: str) -> None:
    assert probe_index(index, "2.8.0", (3, 11)) == ""


def test_probe_says_what_was_wrong(index: str) -> None:
    assert probe_index(index, "2.8.0", (3, 10)) == "has no torch 2.8.0 for this Python"
    assert probe_index(f"{index}/none", "2.8.0", (3, 11)) == "cannot be reached (Not Found)"
    assert "refused" in probe_index("http://127.0.0.1:9", "2.8.0", (3, 11))


def test_probe_does_not_wait(index: str) -> None:
    began = time.monotonic()
    assert probe_index(f"{index}/slow", "2.8.0", (3, 11), seconds=0.1)
    assert time.monotonic() - began < 30


def test_the_cpu_only_wheel_is_taken_when_offered() -> None:
    source = choose_source("", "2.8.0", (3, 11), lambda *_: "")
    assert (source.index, source.suffix) == (CPU_INDEX, "+cpu")


def test_else_the_default_is_taken_with_the_reason() -> None:
    source = choose_source("", "2.8.0", (3, 11), lambda *_: "did not answer within 4 s")
    assert (source.index, source.suffix) == ("default", "")
    assert source.reason == "the CPU-only wheels' index did not answer within 4 s"


@pytest.mark.parametrize(
    "asked",
    ["default", "https://mirror.example/whl/cpu", "file:///wheels", "http://127.0.0.1:8/", "http://[::1]:8/"],
)
def test_an_order_is_obeyed_without_a_probe(asked: str) -> None:
    check_index(asked)
    source = choose_source(asked, "2.8.0", (3, 11), lambda *_: pytest.fail("probed"))
    assert (source.index, source.suffix) == (asked, "")


def test_a_mistyped_order_is_refused() -> None:
    with pytest.raises(SetupError, match=r"TORCH_INDEX must be one of `default`, an address .*: got cpu"):
        check_index("cpu")


@pytest.mark.parametrize(
    "asked", ["http://mirror.example/cpu", "http://127.0.0.1.evil.example/", "http://10.0.0.1/", "http://["]
)
def test_an_index_without_tls_is_this_machines_own(asked: str) -> None:
    with pytest.raises(SetupError, match="on this machine only: what comes without TLS can be anybody's"):
        check_index(asked)


def test_no_message_shows_credentials() -> None:
    asked = "https://name:secret@mirror.example/cpu"
    assert hide_credentials(asked) == "https://***@mirror.example/cpu"
    assert hide_credentials("https://to@ken@mirror.example/a@b") == "https://***@mirror.example/a@b"
    assert "secret" not in choose_source(asked, "2.8.0", (3, 11), lambda *_: "").reason
    with pytest.raises(SetupError) as error:
        check_index("http://name:secret@mirror.example/cpu")
    assert "secret" not in str(error.value)
