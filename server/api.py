"""Talks to TorchServe and to HAProxy: HTTP over TCP, or over TorchServe's Unix sockets."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from config.plan import Plan
from server.errors import ApiError
from server.ports import inference_url
from server.rundir import RunDir
from server.tokens import read_token

INFERENCE, MANAGEMENT = "inference", "management"
UNIX = "unix:"
PROFILE_HEADER = "X-Cpu-Kit-Profile"
"""The handlers' own (handlers/shared/profiling.py), of the describe call alone."""


def connect(url: str, certificate: str, timeout_s: float) -> socket.socket:
    """To `unix:/path`, `http://host:port` or `https://host:port`; the environment's proxies are not asked."""
    if url.startswith(UNIX):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(url.removeprefix(UNIX))
        except OSError:
            connection.close()
            raise
        return connection
    parts = urlsplit(url)
    plain = socket.create_connection((parts.hostname or "", parts.port or 80), timeout_s)
    if parts.scheme != "https":
        return plain
    context = ssl.create_default_context(cafile=certificate)  # it believes this one alone, whoever signed it
    context.check_hostname = False  # it is called by loopback's number here
    return context.wrap_socket(plain)


class Connection(http.client.HTTPConnection):
    """HTTP on whatever `connect` opens."""

    def __init__(self, url: str, certificate: str, timeout_s: float) -> None:
        super().__init__("localhost" if url.startswith(UNIX) else urlsplit(url).netloc, timeout=timeout_s)
        self._open = lambda: connect(url, certificate, timeout_s)

    def connect(self) -> None:
        self.sock = self._open()


@dataclass(frozen=True, kw_only=True)
class Client:
    """Calls to one server; ApiError where it does not answer, or answers with an error."""

    inference_url: str  # http(s)://host:port, or unix:/path
    management_url: str
    metrics_url: str = ""  # of TorchServe's Prometheus metrics
    token_file: Path | None = None  # with the token that predictions need; None where none is needed
    certificate: str = ""  # of a server with TLS: a file

    def token(self) -> str:
        """What predictions need; empty where they need none."""
        return read_token(self.token_file) if self.token_file else ""

    def describe(
        self, model: str, *, customized: bool = False, profile: str = "", timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """What TorchServe, and one of the workers when customized, says about a model (or `model/version`).

        `profile` asks that worker to watch its next runs, or for what it saw (handlers/shared/profiling.py).
        """
        path = f"/models/{quote(model)}" + ("?customized=true" if customized else "")
        headers = {PROFILE_HEADER: profile} if profile else {}
        answer = self._call(self.management_url, "GET", path, headers=headers, timeout_s=timeout_s)
        try:
            return dict(json.loads(answer)[0])
        except (ValueError, LookupError, TypeError) as problem:
            raise ApiError(f"{self.management_url}{path}: not a description: {answer[:200]!r}") from problem

    def metrics(self) -> str:
        """In Prometheus' text form."""
        return self._call(self.metrics_url, "GET", "/metrics", timeout_s=10.0).decode()

    def predict(self, model: str, body: bytes, content_type: str, *, timeout_s: float = 60.0) -> Any:
        """The model's answer, from JSON."""
        path, headers = f"/predictions/{quote(model)}", {"Content-Type": content_type, **bearer(self.token())}
        answer = self._call(self.inference_url, "POST", path, body, headers=headers, timeout_s=timeout_s)
        try:
            return json.loads(answer)
        except ValueError as problem:
            raise ApiError(f"{self.inference_url}{path}: not JSON: {answer[:200]!r}") from problem

    def ask_status(self, kind: str, method: str, path: str, token: str = "") -> int:
        """Status of a call as anybody might make it: any method, any token, none where it is empty."""
        url, body = getattr(self, f"{kind}_url"), b"" if method == "POST" else None
        try:
            self._call(url, method, path, body, headers=bearer(token), timeout_s=5.0)
        except ApiError as problem:
            if not problem.status:
                raise
            return problem.status
        return http.client.OK

    def _call(self, url: str, method: str, path: str, body: bytes | None = None, *,
              headers: Mapping[str, str] | None = None, timeout_s: float) -> bytes:  # fmt: skip
        connection = Connection(url, self.certificate, timeout_s)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        # A JVM that dies in mid-answer gives IncompleteRead or BadStatusLine, which are no OSError.
        except (OSError, ValueError, http.client.HTTPException) as problem:
            raise ApiError(f"{url}{path}: no response: {str(problem) or type(problem).__name__}") from problem
        finally:
            connection.close()
        if status >= http.client.BAD_REQUEST:
            said = text[:2000].decode(errors="replace").strip()
            raise ApiError(f"{url}{path}: answered {status}: {said}", status=status)
        return text


@dataclass(frozen=True, kw_only=True)
class ServerClient(Client):
    """Predictions through HAProxy, questions to the instances behind it, whose workers it shows together."""

    token_file: Path
    plan: Plan

    def describe(self, model: str, *, customized: bool = False, **how: Any) -> dict[str, Any]:
        """Of the instances that serve it, all workers together; one of the workers when customized."""
        names = self.plan.list_serving(model.partition("/")[0])
        if customized:  # whoever asks for a certain worker asks until it has answered
            names = [random.choice(names)]
        clients = [make_instance_client(self.plan, name) for name in names]
        described = [client.describe(model, customized=customized, **how) for client in clients]
        return {**described[0], "workers": [one for each in described for one in each.get("workers", [])]}

    def metrics(self) -> str:
        """Of all instances."""
        return "\n".join(make_instance_client(self.plan, name).metrics() for name in self.plan.instances)


def make_client(plan: Plan, run: RunDir) -> ServerClient:
    """Of the whole server."""
    url, certificate = inference_url(plan), plan.proxy.tls_cert
    return ServerClient(
        inference_url=url, management_url=url, certificate=certificate, token_file=run.token, plan=plan
    )


def make_instance_client(plan: Plan, instance: str) -> Client:
    """Of one TorchServe, past HAProxy."""
    kinds = ("inference", "management", "metrics")
    inference, management, metrics = (
        plan.instances[instance].properties[f"{kind}_address"] for kind in kinds
    )
    return Client(inference_url=inference, management_url=management, metrics_url=metrics)


def bearer(token: str) -> dict[str, str]:
    """The header with a token; none where there is none."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def count_waiting(described: Mapping[str, Any]) -> int:
    """Requests that wait; 0 when TorchServe does not say."""
    return int((described.get("jobQueueStatus") or {}).get("pendingRequests") or 0)


def read_queue_size(model: str, client: Client, described: Mapping[str, Any], planned: int) -> int | None:
    """Taken and free places together; None when TorchServe does not say. It counts one after the other, and
    requests come and go in between: under load it is asked five times, and once the planned size is proof."""
    size = None
    for _ in range(5):
        queue = described.get("jobQueueStatus") or {}
        taken, free = queue.get("pendingRequests"), queue.get("remainingCapacity")
        if taken is None or free is None:
            break
        size = int(taken) + int(free)
        if size == planned or not taken:
            break
        described = client.describe(model)
    return size
