"""Calls a live server as an untrusted client would, and reads which TCP addresses its processes listen on.

No call reaches a worker. Registering is asked for without naming a model: 405 with the model API off, else
400 (ManagementRequestHandler.java). Sizes are asked about with `Expect: 100-continue` and no body: netty's
aggregator, like HAProxy, answers 100 or 413 by Content-Length alone.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from urllib.parse import quote

import psutil

from server.api import INFERENCE, MANAGEMENT, Client, bearer, connect
from server.errors import ApiError, ServerError
from server.processes import Process


class Unknown(str):
    """A value that cannot be read where no difference follows from that: its row is not checkable."""


_WRONG_TOKEN = "not-a-token-of-this-server"
_SECONDS = 5.0
LARGEST_REQUEST = "largest request"
LARGER_REQUEST = "one byte more"
GRPC = {
    "gRPC inference": ("grpc_inference_port", "inference.InferenceAPIsService/Ping"),
    "gRPC management": ("grpc_management_port", "management.ManagementAPIsService/ListModels"),
}
"""The property with the port, and what is called there."""
_UNIMPLEMENTED = "12"
_BUSY = {"429", "503"}
"""Not a word about the question: there was no room for it."""
PROXY_PROBES: dict[str, tuple[str, Callable[[Client, str, int], int]]] = {
    "no token": ("401", lambda to, path, _: to.ask_status(INFERENCE, "POST", path, "")),
    "wrong token": ("401", lambda to, path, _: to.ask_status(INFERENCE, "POST", path, _WRONG_TOKEN)),
    "other path": ("404", lambda to, *_: to.ask_status(INFERENCE, "GET", "/models", to.token())),
    "other method": ("405", lambda to, path, _: to.ask_status(INFERENCE, "DELETE", path, to.token())),
    LARGEST_REQUEST: ("100", lambda to, path, largest: announce(to, path, largest)),
    LARGER_REQUEST: ("413", lambda to, path, largest: announce(to, path, largest + 1)),
    "/ready": ("200", lambda to, *_: to.ask_status(INFERENCE, "GET", "/ready", "")),
    "/live": ("200", lambda to, *_: to.ask_status(INFERENCE, "GET", "/live", "")),
}
"""What HAProxy answers, and the call (path of predictions, largest request): an untrusted client is rejected
before its body is read."""


def probe_proxy(client: Client, model: str, largest: int) -> dict[str, str]:
    """Probe → the status it got, or why there was none."""
    path = f"/predictions/{quote(model)}"
    calls = {name: partial(call, client, path, largest) for name, (_, call) in PROXY_PROBES.items()}
    return {name: _read_status(call) for name, call in calls.items()}


def probe_instance(client: Client, model: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The same of TorchServe, by row of verify; Unknown where it was too busy to say."""
    grpc = {
        name: _read_status(partial(call_grpc, int(properties[port]), f"org.pytorch.serve.grpc.{method}"))
        for name, (port, method) in GRPC.items()
    }
    register = _read_status(lambda: client.ask_status(MANAGEMENT, "POST", "/models"))
    path, largest = f"/predictions/{quote(model)}", int(properties["max_request_size"])
    sizes = [_read_status(partial(announce, client, path, size)) for size in (largest, largest + 1)]
    text = f"{largest} bytes: {sizes[0]}; one more: {sizes[1]}"
    can_call = [f"{name} {status}" for name, status in grpc.items() if status != _UNIMPLEMENTED]
    can_register = {"403": "off", "405": "off", "400": "on"}.get(register, register)
    return {
        "gRPC": ", ".join(can_call) or "rejected",
        "model API": Unknown(register) if register in _BUSY else can_register,
        "request size": Unknown(text) if _BUSY & {*sizes} else text,
    }


def _read_status(call: Callable[[], int]) -> str:
    try:
        return str(call())
    except (ServerError, OSError) as problem:
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

    HTTP/2 byte by byte (RFC 9113): netty writes short header values without Huffman's code: the status
    can be read from the bytes.
    """
    headers = {
        ":method": "POST", ":scheme": "http", ":path": f"/{method}", ":authority": "localhost",
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
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


def read_listening(processes: Iterable[Process]) -> dict[str, str] | None:
    """Address → role of the process that listens there; None when one of them may not be looked into.

    HAProxy has its socket from the supervisor, which keeps it open: it counts as HAProxy's, whichever of the
    two has the lower process id.
    """
    found = {}
    for process in sorted(processes, key=lambda one: not one.is_supervisor):
        try:
            connections = psutil.Process(process.pid).net_connections("tcp")
        except psutil.NoSuchProcess:  # it has ended meanwhile
            continue
        except psutil.AccessDenied:
            return None
        listening = [one.laddr for one in connections if one.status == psutil.CONN_LISTEN]
        found.update({render_address(at.ip, at.port): process.role for at in listening})
    return dict(sorted(found.items()))


def render_address(host: str, port: int) -> str:
    """127.0.0.1:8080; "*:8080" for every address of the machine, as Java shows 0.0.0.0 and ::."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_unspecified:
        return f"*:{port}"
    return f"[{mapped}]:{port}" if mapped.version == 6 else f"{mapped}:{port}"
