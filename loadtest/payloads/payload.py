"""One request body, whatever it is made from; every driver, judge and result speaks of these."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One request body."""

    name: str
    """Says what it is."""
    body: bytes
    content_type: str
    model: str
    """The model that is asked."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:16]

    def describe(self) -> dict[str, str | int]:
        """Without its body, as results keep it."""
        size, kind = len(self.body), self.content_type
        return {"name": self.name, "bytes": size, "content_type": kind, "sha256": self.digest}

    @property
    def path(self) -> str:
        """Of the URL that it is sent to."""
        return f"/predictions/{self.model}"


JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"


def make_text(name: str, text: str, *, model: str) -> Payload:
    """A text as most clients send it."""
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    return Payload(name=name, body=body, content_type=JSON, model=model)


def make_plain_text(name: str, text: str, *, model: str) -> Payload:
    """A text with nothing around it."""
    return Payload(name=name, body=text.encode(), content_type=PLAIN, model=model)


def read_text(payload: Payload) -> str | None:
    """What a text says; None for a picture."""
    if payload.content_type == JSON:
        return str(json.loads(payload.body)["text"])
    return payload.body.decode() if payload.content_type == PLAIN else None
