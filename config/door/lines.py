"""Lines of haproxy.cfg: the reason as a comment above each, and texts quoted as HAProxy reads them."""

from __future__ import annotations

import json
import textwrap

WIDTH = 108
INDENT = "    "

RETRY_AFTER = "retry-after 1"
"""With each 503: a second later another server may be well, or the queue shorter."""


def explain(reason: str, *lines: str) -> list[str]:
    """Lines of a section below the reason for them."""
    comment = textwrap.wrap(
        reason,
        WIDTH,
        initial_indent=f"{INDENT}# ",
        subsequent_indent=f"{INDENT}#   ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [*comment, *(f"{INDENT}{line}" for line in lines)]


def quote(text: str) -> str:
    """One argument, taken as it is: no blank ends it, and no variable of the environment comes in."""
    for special in ("\\", '"', "$"):
        text = text.replace(special, f"\\{special}")
    return f'"{text}"'


def render_refusal(status: int, text: str, *headers: str) -> str:
    """A refusal in the kit's form, as arguments; `text` and the headers' values are log formats: %[sample] is
    replaced, and a % that is meant is written twice."""
    body = quote(json.dumps({"code": status, "error": text}, ensure_ascii=False))
    named = " ".join(f"hdr {header}" for header in ("x-request-id %[unique-id]", *headers))
    return f'status {status} content-type application/json lf-string {body[:-1]}\\n" {named}'
