"""Calls a live server as an untrusted client would, and reads which TCP addresses its processes listen on.

No call reaches a worker. Registering is asked for without naming a model: 405 with the model API off, else
400 (ManagementRequestHandler.java). Sizes are asked about with `Expect: 100-continue` and no body: netty's
aggregator answers 100 or 413 by Content-Length alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from server.api import MANAGEMENT, Client, bearer, connect
from server.errors import ApiError
from server.ports import read_listening_inodes
from server.processes import PROC, Process

WRONG_TOKEN = "not-a-token-of-this-server"
_SECONDS = 5.0

REGISTER = "register a model"
LARGEST_REQUEST = "the largest request"
LARGER_REQUEST = "a request one byte larger"
GRPC = {
    "gRPC inference": ("grpc_inference_port", "inference.InferenceAPIsService/Ping"),
    "gRPC management": ("grpc_management_port", "management.ManagementAPIsService/ListModels"),
}
"""The property with the port, and what is called there."""


def probe(client: Client, model: str, largest_request: int, ports: dict[str, int]) -> dict[str, str]:
    """Probe → the status it got, or why there was none; `ports` of gRPC by property."""
    prediction = f"/predictions/{quote(model)}"
    asked: dict[str, Callable[[], int]] = {
        REGISTER: lambda: client.ask_status(MANAGEMENT, "POST", "/models"),
        LARGEST_REQUEST: partial(announce, client, prediction, largest_request),
        LARGER_REQUEST: partial(announce, client, prediction, largest_request + 1),
        **{
            name: partial(call_grpc, ports[key], f"org.pytorch.serve.grpc.{method}")
            for name, (key, method) in GRPC.items()
        },
    }
    return {name: read_status(ask) for name, ask in asked.items()}


def read_status(ask: Callable[[], int]) -> str:
    """The status, or why there was none."""
    try:
        return str(ask())
    except (ApiError, OSError) as problem:
        return str(problem)


def announce(client: Client, path: str, size: int) -> int:
    """The status a request gets that announces a body of so many bytes, and sends none of it."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        *(f"{name}: {value}" for name, value in bearer(client.token()).items()),
        "Content-Type: application/octet-stream",
        f"Content-Length: {size}",
        "Expect: 100-continue",
    ]
    with connect(client.inference_url, client.certificate, _SECONDS) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        with connection.makefile("rb") as answer:
            line = answer.readline(200).decode("ascii", errors="replace").split()
    if len(line) < 2 or not line[1].isdigit():
        raise ApiError(f"{client.inference_url}: no answer to a request that announces {size} bytes")
    return int(line[1])


def call_grpc(port: int, method: str) -> int:
    """grpc-status of a call without a token and with an empty message: 0 is OK, 12 UNIMPLEMENTED.

    HTTP/2 by hand (RFC 9113): netty writes short header values without Huffman's code, so that the status
    can be read from the bytes.
    """
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{method}",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    frames = [(4, 0, 0, b""), (1, 4, 1, block), (0, 1, 1, b"\0" * 5)]  # SETTINGS, HEADERS, DATA
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(
        struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body
        for kind, flags, stream, body in frames
    )
    seen = b""
    with socket.create_connection(("127.0.0.1", port), _SECONDS) as connection:
        connection.sendall(sent)
        while not (found := re.search(rb"grpc-status.(\d+)", seen, re.DOTALL)):
            part = connection.recv(1 << 16)
            if not part:
                raise ApiError(f"port {port}: no answer to a gRPC call")
            seen += part
    return int(found[1])


def read_listening(processes: Iterable[Process], proc: Path = PROC) -> dict[str, str] | None:
    """Address → role of the process that listens there; None when one of them may not be looked into."""
    found = {}
    for process in processes:
        inodes = _read_socket_inodes(process.pid, proc)
        if inodes is None:
            return None
        listening = read_listening_inodes(proc / str(process.pid) / "net")
        found.update({parse_address(listening[inode]): process.role for inode in inodes & set(listening)})
    return dict(sorted(found.items()))


def render_address(host: str, port: int) -> str:
    """127.0.0.1:8080; "*:8080" for every address of the machine, as Java shows 0.0.0.0 and ::."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_unspecified:
        return f"*:{port}"
    return f"[{mapped}]:{port}" if mapped.version == 6 else f"{mapped}:{port}"


def _read_socket_inodes(pid: int, proc: Path) -> set[str] | None:
    """Inodes of its open sockets; a process that has ended has none."""
    inodes = set()
    try:
        for link in (proc / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # a file may be closed while we look
                kind, _, inode = str(link.readlink()).partition(":[")
                inodes |= {inode.rstrip("]")} if kind == "socket" else set()
    except FileNotFoundError:
        return set()
    except OSError:
        return None
    return inodes


def parse_address(text: str) -> str:
    """0100007F:1F90 → 127.0.0.1:8080: the kernel prints words of 32 bits in the machine's (x86's) order."""
    words, _, port = text.rpartition(":")
    raw = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return render_address(socket.inet_ntop(family, raw), int(port, 16))
