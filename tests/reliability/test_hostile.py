"""What untrusted clients and crowds can send: it costs what the plan says, and everybody else is served."""

from __future__ import annotations

import contextlib
import re
import select
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reliability import bodies
from tests.reliability.client import HOST, Load, Outcome, Request, held_open, send, send_all
from tests.reliability.conftest import Server
from tests.reliability.seeds import IMAGE, TEXT

pytestmark = pytest.mark.hostile

IMAGE_MIB, IMAGE_CPU_S = 400.0, 2.0
"""What no body of up to 16 MiB may cost (`limits` of the plan)."""
KEPT_MIB = 100.0
"""A quarter of that: what allocators keep of it for the next one."""
COPIES_MIB = 4 * 16.0
"""Of a rejected body: what came over the socket, what the protocol makes of it, and as much spare."""
HELD = 60
LOG_KIB = 100.0
BUSY = {200, 413, 429, 503}
"""What overload may answer: the answer, too large, too many, not now."""
REJECTED = {400, 413, 415, 422, 429, 503}


@contextlib.contextmanager
def costing(server: Server, **limits: float) -> Iterator[None]:
    """No process is lost, no memory runs out, no worker takes more, and all is right at once."""
    server.forget_peaks()
    before = server.use()
    yield
    assert server.send_smoke_requests() == []
    after = server.use()
    assert (after.java, set(after.resident_mib)) == (before.java, set(before.resident_mib))
    assert after.out_of_memory == before.out_of_memory
    had = before.resident_mib
    cost = {
        "peak_mib": max(after.peak_mib[pid] - had[pid] for pid in had),
        "kept_mib": max(after.resident_mib[pid] - had[pid] for pid in had),
        "cpu_s": sum(after.cpu_s[pid] - before.cpu_s[pid] for pid in had),
        "log_kib": after.log_kib - before.log_kib,
    }
    assert {name: cost[name] for name, most in limits.items() if cost[name] > most} == {}, limits


def count(outcomes: Iterable[Outcome]) -> Counter[int]:
    """By status; 0 for those without an answer."""
    return Counter(one.status for one in outcomes)


LIMITS = {"peak_mib": IMAGE_MIB, "kept_mib": KEPT_MIB, "cpu_s": IMAGE_CPU_S}
FULL = bodies.MOST_BYTES - 2
EXPENSIVE = {
    # It says 16×16 and is 13,000×13,000; 24 megapixels; a format whose decoder is written in Python.
    "iptc": (IMAGE, lambda: bodies.make_iptc(13_000), bodies.OCTETS, {415}, 1, LIMITS),
    "large": (IMAGE, lambda: bodies.make_plain_png(4898, mode="RGBA"), bodies.PNG, {200, 413}, 1, LIMITS),
    "qoi": (IMAGE, lambda: bodies.make_qoi(4090), bodies.OCTETS, {413, 415, 429, 503}, 16,
            {"cpu_s": 16 * IMAGE_CPU_S}),
    # 5.5 million empty lists; 8 million fields; as many empty parts as fit.
    "json": (TEXT, lambda: bodies.make_wide_json(FULL), bodies.JSON, REJECTED, 1,
             {"peak_mib": COPIES_MIB, "cpu_s": IMAGE_CPU_S}),
    "json-16": (TEXT, lambda: bodies.make_wide_json(FULL), bodies.JSON, REJECTED, 16,
                {"peak_mib": 16 * COPIES_MIB, "cpu_s": 16 * IMAGE_CPU_S}),
    "form": (IMAGE, lambda: bodies.make_form(FULL), bodies.FORM, {415}, 1, {}),
    "parts": (IMAGE, lambda: bodies.make_parts(FULL), bodies.MULTIPART, REJECTED, 1, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPENSIVE)
def test_an_expensive_body_costs_no_more_than_planned(name: str, server: Server) -> None:
    model, make, content_type, allowed, copies, limits = EXPENSIVE[name]
    request = server.make(model, make(), content_type)
    with costing(server, **limits):
        outcomes = send_all(server.port, [request] * copies, clients=copies)
    assert set(count(outcomes)) <= allowed, count(outcomes)


def test_a_jpeg_of_24000_scans_stops_no_photographs(server: Server) -> None:
    scans = server.make(IMAGE, bodies.make_scans(10_000, 24_000), bodies.JPEG)
    photos = [server.smoke_request(IMAGE)] * 7
    with costing(server, peak_mib=IMAGE_MIB, kept_mib=KEPT_MIB, cpu_s=IMAGE_CPU_S + 1):
        outcomes = send_all(server.port, [scans, *photos], clients=8)
    assert count(one for one in outcomes if one.request is not scans) == {200: 7}
    assert set(count(outcomes)) <= {200, 413, 422}


@pytest.mark.quick
def test_200_clients_with_images_of_8_mb_are_all_answered(server: Server) -> None:
    image = server.make(IMAGE, bodies.make_noise_png(1650), bodies.PNG)
    with costing(server):
        outcomes = send_all(server.port, [image] * 400, clients=200, seconds=60.0)
    assert set(count(outcomes)) <= BUSY, Counter(one.failure for one in outcomes)
    assert count(outcomes)[200] > 0


@pytest.mark.quick
@pytest.mark.parametrize("token", ["", None], ids=["no token", "token"])
def test_bodies_that_stay_unfinished_keep_nobody_out(token: str | None, server: Server) -> None:
    options = {} if token is None else {"token": token}
    head = server.make(IMAGE, b"\0" * 16_000_000, bodies.OCTETS, **options).render_head()

    def hold(link: socket.socket) -> None:
        link.settimeout(10.0)
        with contextlib.suppress(OSError):  # answered and closed, or not read on
            link.sendall(head + b"\0" * 15_900_000)

    with costing(server), held_open(server.port, HELD) as links:
        with ThreadPoolExecutor(HELD) as pool:
            list(pool.map(hold, links))
        assert server.send_smoke_requests() == []
        if token == "":
            assert {read_status(link) for link in links} <= {401, None}


def read_status(link: socket.socket) -> int | None:
    """Of what has come by now; None where that is nothing, or lost with the connection."""
    with contextlib.suppress(OSError):
        if select.select([link], [], [], 0.0)[0] and (received := link.recv(1 << 16)):
            return int(received.split()[1])
    return None


@pytest.mark.quick
def test_who_shows_no_token_is_told_so_and_takes_nobodys_place(server: Server) -> None:
    photo = bodies.make_noise_png(320)
    flood = [server.make(IMAGE, photo, bodies.PNG, token=token) for token in ("", "wrong")] * 1500
    with costing(server), Load(server.port, [server.smoke_request(IMAGE)] * 100, rate=5.0) as good:
        outcomes = send_all(server.port, flood, clients=100)
    assert count(outcomes) == {401: len(flood)}
    assert set(count(good.outcomes)) == {200}
    assert max(one.seconds for one in good.outcomes) < 5.0
    # Before a body is read.
    assert send(server.port, server.make(IMAGE, b"\0" * 16_000_000, token="wrong"), 5.0).status == 401


def test_bad_addresses_without_a_token_fill_no_log(server: Server) -> None:
    with costing(server, log_kib=LOG_KIB):
        outcomes = send_all(server.port, [Request(path="/%zz")] * 1000, clients=4)
    assert set(count(outcomes)) <= {400, 401, 403, 404}


def test_headers_that_never_end_keep_nobody_out(server: Server) -> None:
    with costing(server), held_open(server.port, HELD) as links:
        for piece in (b"POST /predictions/x HTTP/1.1\r\nX-Slow: ", *[b"a"] * 10):
            for link in links:
                with contextlib.suppress(OSError):
                    link.sendall(piece)
            time.sleep(0.5)
        assert server.send_smoke_requests() == []


def test_long_texts_keep_short_ones_waiting_for_their_turn_only(server: Server) -> None:
    """The worst requests that are allowed."""
    long = [server.make(TEXT, bodies.make_long_texts(), bodies.JSON)] * 16
    with costing(server), Load(server.port, [server.smoke_request(TEXT)] * 1000, rate=2.0) as short:
        outcomes = send_all(server.port, long, clients=16)
    assert set(count(outcomes)) <= BUSY | {422}
    assert all(server.is_right(TEXT, one) or one.status in (429, 503) for one in short.outcomes)


def test_two_requests_in_one_write_are_answered_in_their_order(server: Server) -> None:
    slow = server.make(IMAGE, bodies.make_plain_png(4800, mode="RGBA"), bodies.PNG)
    quick = server.make(TEXT, b"{", bodies.JSON)
    received = b""
    with costing(server), socket.create_connection((HOST, server.port), timeout=30.0) as link:
        link.sendall(b"".join(one.render_head() + one.body for one in (slow, quick)))
        while len(statuses := re.findall(rb"HTTP/1\.1 (\d{3})", received)) < 2 and (
            piece := link.recv(1 << 16)
        ):
            received += piece
    assert statuses in ([b"200", b"400"], [b"413", b"400"])


def test_forms_that_are_none_are_rejected_with_the_cause(server: Server) -> None:
    photo = server.smoke_request(IMAGE).body
    good = bodies.make_upload(photo)
    forms = {
        "a image as --data-binary sends it": (photo, bodies.FORM, {415}, b"Content-Type"),
        "no boundary": (good, "multipart/form-data", {400, 415}, b""),
        "another boundary": (good, "multipart/form-data; boundary=other", {400}, b""),
        "cut": (good[:-20], bodies.MULTIPART, {400}, b""),
        "no field": (f"--{bodies.BOUNDARY}--\r\n".encode(), bodies.MULTIPART, {400}, b""),
    }
    with costing(server):
        for name, (body, kind, allowed, word) in forms.items():
            outcome = send(server.port, server.make(IMAGE, body, kind))
            assert outcome.status in allowed, (name, outcome.status, outcome.body)
            assert word in outcome.body
            assert outcome.body
        assert server.is_right(IMAGE, send(server.port, server.make(IMAGE, good, bodies.MULTIPART)))


@pytest.mark.skipif(shutil.which("ab") is None, reason="needs ApacheBench")
def test_apachebench_that_keeps_no_connection_loses_no_request(server: Server, tmp_path: Path) -> None:
    known, total = server.smoke_request(IMAGE), 400
    (tmp_path / "photo.jpg").write_bytes(known.body)
    command = [
        "ab",
        "-l",
        "-q",
        "-n",
        str(total),
        "-c",
        "8",
        "-p",
        str(tmp_path / "photo.jpg"),
        "-T",
        bodies.JPEG,
    ]
    command += ["-H", f"Authorization: Bearer {server.token}", f"http://{HOST}:{server.port}{known.path}"]
    with costing(server):
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert re.search(rf"Complete requests: +{total}\n", said), said
    assert re.search(r"Failed requests: +0\n", said), said
    assert "Non-2xx" not in said
