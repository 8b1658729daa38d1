"""The answer to one request: its status, its JSON, and what a log must say of a failure."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handlers.shared.errors import BadRequest

PASSING = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends the process and is no request's fault. All else is, also what is no Exception: a panic in the
tokenizers' Rust arrives as a BaseException."""

SHOWN_CAUSE = 200
"""Characters of a failure's text in the log: other exceptions than ours may quote what the client sent."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One request's answer: an HTTP status and a body, JSON unless a header says otherwise."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""
    """Why it failed; for the log, so without what the client sent."""
    trace: str = ""
    """Where an error came from that is no fault of the request: file:line function, outermost first."""


def fail(error: BaseException, doing: str) -> Reply:
    """The answer to a request whose reading or answering raised; `doing` is the participle of which."""
    if isinstance(error, PASSING):
        raise error
    if isinstance(error, MemoryError):
        # The system overcommits: only one huge allocation is rejected, and that is this request's own.
        error = BadRequest(413, "the request does not fit into the worker's memory")
    if isinstance(error, BadRequest):
        body = _to_error(error.status, str(error))
        return Reply(status=error.status, body=body, cause=error.cause[:SHOWN_CAUSE])
    kind = type(error).__name__
    return Reply(
        status=500,
        body=_to_error(500, f"the request could not be {doing}: {kind}"),
        cause=f"{kind}: {error}"[:SHOWN_CAUSE],
        trace=" > ".join(
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)
        ),
    )


def to_json(value: Any) -> bytes:
    """Compact UTF-8 JSON, with the line end that a terminal wants; ValueError for NaN, which is no JSON."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half a surrogate pair becomes its own JSON escape: an answer must never fail for a text it quotes.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _to_error(status: int, message: str) -> bytes:
    return to_json({"code": status, "error": message})
