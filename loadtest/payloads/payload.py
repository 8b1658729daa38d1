"""One request body, whatever it is made from; every driver, judge and result speaks of these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError

MANIFEST = "payloads.json"


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One request body."""

    name: str
    """Says what it is."""
    body: bytes
    content_type: str
    model: str
    """The model that is asked."""
    path: str = ""
    """Of the URL that it is sent to; empty: of TorchServe's predictions."""

    def __post_init__(self) -> None:
        if not self.path:
            object.__setattr__(self, "path", f"/predictions/{self.model}")

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:16]

    def describe(self) -> dict[str, str | int]:
        """Without its body, as results keep it."""
        size, kind = len(self.body), self.content_type
        return {"name": self.name, "bytes": size, "content_type": kind, "sha256": self.digest}


JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"


def make_text(name: str, text: str, *, model: str) -> Payload:
    """A text as most clients send it."""
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    return Payload(name=name, body=body, content_type=JSON, model=model)


def make_plain_text(name: str, text: str, *, model: str) -> Payload:
    """A text with nothing around it."""
    return Payload(name=name, body=text.encode(), content_type=PLAIN, model=model)


def write_manifest(payloads: Sequence[Payload], folder: Path) -> Path:
    """The bodies and what they are, for generators that cannot make them themselves; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, one in enumerate(payloads):
        (folder / f"{number:04d}.body").write_bytes(one.body)
        listed.append(
            {"name": one.name, "content_type": one.content_type, "model": one.model, "path": one.path}
        )
    (folder / MANIFEST).write_text(json.dumps(listed), encoding="utf-8")
    return folder


def read_manifest(folder: Path) -> list[Payload] | None:
    """None where the folder has no manifest."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        return [
            Payload(body=(folder / f"{number:04d}.body").read_bytes(), **one)
            for number, one in enumerate(listed)
        ]
    except (ValueError, TypeError, OSError) as problem:
        raise LoadTestError(f"{file} must list the bodies beside it: {problem}") from problem
