"""Lines for who watches a start or a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

Report = Callable[[str], None]


def say(line: str) -> None:
    """Print it, and go on where that cannot be: a full disk must not end who watches over a server."""
    with contextlib.suppress(OSError):
        print(line, flush=True)
