"""Calls a live server as a stranger would, to see that it refuses; none of them reaches a worker.

TorchServe 0.12 looks at the token before the path (TokenAuthorizationHandler.java), so a prediction by a
version that no model has is refused without a token, and 404 where tokens are off. Registering is asked for
without naming a model: 405 with the model API off, else 400 (ManagementRequestHandler.java). Sizes are asked
about with `Expect: 100-continue` and no body: netty's aggregator answers 100 or 413 by Content-Length alone.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from urllib.parse import quote, urlsplit

from server.api import INFERENCE, MANAGEMENT, Client, make_context
from server.errors import ApiError

WRONG_TOKEN = "not-a-token-of-this-server"
_NO_VERSION = "no-such-version"
_SECONDS = 5.0

REFUSALS = {
    "inference without a token": (INFERENCE, ""),
    "inference with a wrong token": (INFERENCE, WRONG_TOKEN),
    "management without a token": (MANAGEMENT, ""),
    "management with a wrong token": (MANAGEMENT, WRONG_TOKEN),
}
REGISTER = "register a model"
LARGEST_REQUEST = "the largest request"
LARGER_REQUEST = "a request one byte larger"


def probe(client: Client, model: str, largest_request: int) -> dict[str, str]:
    """Probe → the status it got, or why there was none."""
    prediction = f"/predictions/{quote(model)}"
    calls = {INFERENCE: ("POST", f"{prediction}/{_NO_VERSION}"), MANAGEMENT: ("GET", "/models")}
    asked: dict[str, Callable[[], int]] = {
        name: partial(client.ask_status, kind, *calls[kind], token)
        for name, (kind, token) in REFUSALS.items()
    }
    asked[REGISTER] = lambda: client.ask_status(MANAGEMENT, "POST", "/models", client.token(MANAGEMENT))
    asked[LARGEST_REQUEST] = partial(announce, client, prediction, largest_request)
    asked[LARGER_REQUEST] = partial(announce, client, prediction, largest_request + 1)
    return {name: read_status(ask) for name, ask in asked.items()}


def read_status(ask: Callable[[], int]) -> str:
    """The status, or why there was none."""
    try:
        return str(ask())
    except (ApiError, OSError) as problem:
        return str(problem)


def announce(client: Client, path: str, size: int) -> int:
    """The status a request gets that announces a body of so many bytes, and sends none of it."""
    url = urlsplit(client.inference_url)
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {url.netloc}",
        f"Authorization: Bearer {client.token(INFERENCE)}",
        "Content-Type: application/octet-stream",
        f"Content-Length: {size}",
        "Expect: 100-continue",
    ]
    with contextlib.closing(_connect(client, url.hostname or "", url.port or 80)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        with connection.makefile("rb") as answer:
            line = answer.readline(200).decode("ascii", errors="replace").split()
    if len(line) < 2 or not line[1].isdigit():
        raise ApiError(f"{client.inference_url}: no answer to a request that announces {size} bytes")
    return int(line[1])


def _connect(client: Client, host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), _SECONDS)
    if not client.certificate:
        return connection
    return make_context(client.certificate).wrap_socket(connection, server_hostname=host)
