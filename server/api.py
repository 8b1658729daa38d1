"""Talks to TorchServe's addresses with the tokens of its key file (TokenAuthorization.java)."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from server.errors import ApiError

INFERENCE = "inference"
MANAGEMENT = "management"
PROFILE_HEADER = "X-Cpu-Kit-Profile"
"""The handlers' own (handlers/shared/profiling.py), of the describe call alone."""
# A token that ends within this time is renewed first: it must outlive the call.
_EXPIRY_MARGIN_SECONDS = 30


@functools.cache
def make_opener(certificate: str) -> urllib.request.OpenerDirector:
    """Of a server with TLS, believes its own certificate, whoever signed it, and no other.

    Proxy variables of the environment must not send loopback calls elsewhere.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if certificate:
        handlers.append(urllib.request.HTTPSHandler(context=make_context(certificate)))
    return urllib.request.build_opener(*handlers)


def make_context(certificate: str) -> ssl.SSLContext:
    """Believes this one alone."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False  # it is called by loopback's number here
    return context


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What the key file holds; empty strings when token authorisation is off (no key file)."""

    inference: str = ""
    """Guards predictions."""
    management: str = ""
    """Guards the management address."""
    api: str = ""
    """Gets new ones of the two; never expires."""
    inference_expires: float = 0.0
    """Seconds since the epoch."""
    management_expires: float = 0.0
    """Seconds since the epoch."""


def read_tokens(key_file: Path) -> Tokens:
    """The tokens; empty ones when there is no key file."""
    if not key_file.exists():
        return Tokens()
    try:
        raw = json.loads(key_file.read_text(encoding="utf-8"))
        return Tokens(
            inference=raw["inference"]["key"],
            management=raw["management"]["key"],
            api=raw["API"]["key"],
            inference_expires=_parse_time(raw["inference"]["expiration time"]),
            management_expires=_parse_time(raw["management"]["expiration time"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ApiError(f"{key_file}: cannot be read as TorchServe's key file: {problem}") from problem


def _parse_time(text: str) -> float:
    # java.time.Instant prints up to nanoseconds, which Python 3.10 cannot parse: whole seconds will do.
    return float(timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


@dataclass(frozen=True, kw_only=True)
class Client:
    """Calls to one server."""

    inference_url: str
    """http://host:port of predictions."""
    management_url: str
    """http://host:port of the management API."""
    key_file: Path
    """TorchServe's key file."""
    certificate: str = ""
    """File with the certificate of a server with TLS."""

    def describe(
        self, model: str, *, customized: bool = False, profile: str = "", timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """What TorchServe, and one of the workers when customized, says about a model.

        `profile` asks that worker to look at its next runs, or for what it saw
        (handlers/shared/profiling.py).
        """
        url = f"{self.management_url}/models/{quote(model)}" + ("?customized=true" if customized else "")
        headers = {PROFILE_HEADER: profile} if profile else {}
        answer = self._call(url, self.token(MANAGEMENT), headers=headers, timeout_s=timeout_s)
        try:
            described = json.loads(answer)[0]
        except (ValueError, LookupError, TypeError) as problem:
            raise ApiError(f"{url}: not a description: {answer[:200]!r}") from problem
        return described if isinstance(described, dict) else {}

    def predict(self, model: str, body: bytes, content_type: str, *, timeout_s: float = 60.0) -> Any:
        """The model's answer."""
        url = f"{self.inference_url}/predictions/{quote(model)}"
        answer = self._call(url, self.token(INFERENCE), body, content_type, timeout_s=timeout_s)
        try:
            return json.loads(answer)
        except ValueError as problem:
            raise ApiError(f"{url}: the answer is not JSON: {answer[:200]!r}") from problem

    def ask_status(self, kind: str, method: str, path: str, token: str) -> int:
        """Status of a call as a stranger might make it: any method, any token, none where it is empty."""
        url = self.inference_url if kind == INFERENCE else self.management_url
        try:
            self._call(f"{url}{path}", token, method=method, timeout_s=5.0)
        except ApiError as problem:
            if not problem.status:
                raise
            return problem.status
        return http.client.OK

    def token(self, kind: str, *, for_s: float = 0.0) -> str:
        """A token that is good for so long and a while yet; another is renewed with the API key."""
        tokens, needed_until = read_tokens(self.key_file), time.time() + for_s + _EXPIRY_MARGIN_SECONDS
        if tokens.api and getattr(tokens, f"{kind}_expires") < needed_until:
            self._call(f"{self.management_url}/token?type={kind}", tokens.api, timeout_s=5.0)
            tokens = read_tokens(self.key_file)
        return str(getattr(tokens, kind))

    def _call(self, url: str, token: str, body: bytes | None = None, content_type: str = "", *,
              method: str | None = None, headers: Mapping[str, str] | None = None,
              timeout_s: float) -> bytes:  # fmt: skip
        headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        if content_type:
            headers["Content-Type"] = content_type
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        try:
            with make_opener(self.certificate).open(request, timeout=timeout_s) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as problem:
            text = _read_text(problem)
            raise ApiError(f"{url}: answered {problem.code}: {text}", status=problem.code) from problem
        # A JVM that dies in mid-answer gives IncompleteRead or BadStatusLine, which are no OSError.
        except (OSError, ValueError, http.client.HTTPException) as problem:
            raise ApiError(f"{url}: no answer: {_explain(problem)}") from problem


def _read_text(answer: urllib.error.HTTPError) -> str:
    """What an error's answer says; cut off, its status alone has to do."""
    try:
        return answer.read(2000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as problem:
        return f"(cut off: {_explain(problem)})"


def _explain(problem: Exception) -> str:
    reason = getattr(problem, "reason", problem)
    return str(reason) or type(problem).__name__
