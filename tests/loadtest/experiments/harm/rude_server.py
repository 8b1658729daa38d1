"""A TCP server that answers early, hangs up, resets or says nothing, as told."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket], None]
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def read_head(link: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received and (piece := link.recv(4096)):
        received += piece
    return received


def read_request(link: socket.socket) -> bytes:
    """Head and body."""
    received = read_head(link)
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    wanted = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < wanted and (piece := link.recv(1 << 16)):
        body += piece
    return head + b"\r\n\r\n" + body


def reset(link: socket.socket) -> None:
    """Close with a reset instead of an orderly end (socket(7), SO_LINGER)."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def stay_open(link: socket.socket) -> None:
    """Until the client leaves."""
    link.settimeout(120)
    link.recv(1)


def answer_all(link: socket.socket) -> None:
    while read_request(link).startswith((b"POST", b"GET")):
        link.sendall(FINE)


def answer_once(link: socket.socket) -> None:
    """And end the connection without having said so."""
    read_request(link)
    link.sendall(FINE)


def answer_early(link: socket.socket) -> None:
    """503 after the head; nothing more is read, and the unread body makes the end a reset."""
    read_head(link)
    link.sendall(BUSY)
    time.sleep(0.2)
    link.close()


def answer_early_and_reset(link: socket.socket) -> None:
    read_head(link)
    link.sendall(BUSY)
    time.sleep(0.2)
    reset(link)


def answer_until_the_end(link: socket.socket) -> None:
    """No length: the body ends with the connection."""
    read_request(link)
    link.sendall(b"HTTP/1.1 200 OK\r\n\r\nall ")
    time.sleep(0.05)
    link.sendall(b"of it")


def answer_half_and_end(link: socket.socket) -> None:
    read_request(link)
    link.sendall(FINE[:-1])


def answer_in_chunks(link: socket.socket) -> None:
    read_request(link)
    for piece in (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nok\r\n", b"0\r\n\r\n"):
        link.sendall(piece)
        time.sleep(0.02)
    stay_open(link)


def reset_at_once(link: socket.socket) -> None:
    read_head(link)
    reset(link)


def end_at_once(link: socket.socket) -> None:
    read_request(link)


def say_nothing(link: socket.socket) -> None:
    read_request(link)
    stay_open(link)


@contextlib.contextmanager
def serving(behave: Behaviour) -> Iterator[int]:
    """The port of a server of which every connection behaves so."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as door:
        threading.Thread(target=_accept, args=(door, behave), daemon=True).start()
        yield door.getsockname()[1]


def _accept(door: socket.socket, behave: Behaviour) -> None:
    with contextlib.suppress(OSError):
        while True:
            link, _ = door.accept()
            threading.Thread(target=_behave, args=(link, behave), daemon=True).start()


def _behave(link: socket.socket, behave: Behaviour) -> None:
    with link, contextlib.suppress(OSError):
        behave(link)
