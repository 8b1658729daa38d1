"""Says what goes on and for how long: every second in place on a terminal, now and then in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

TERMINAL_SECONDS = 1.0
LOG_SECONDS = 20.0
"""An archive of 80 s is four lines: enough to see that it goes on, too few to fill a log."""
_CLEAR_LINE = "\r\033[K"


@contextmanager
def doing(what: str, out: TextIO | None = None) -> Iterator[None]:
    """Tell of `what` while the block runs; what else is to be told meanwhile goes through `say`."""
    ended = threading.Event()
    teller = threading.Thread(target=tell, args=(what, out or sys.stdout, ended.wait), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def say(line: str, out: TextIO | None = None) -> None:
    """A line that stays, in the place of the one that counts."""
    out = out or sys.stdout
    print(f"{_CLEAR_LINE if out.isatty() else ''}{line}", file=out, flush=True)


def tell(
    what: str, out: TextIO, wait: Callable[[float], bool], now: Callable[[], float] = time.monotonic
) -> None:
    """Until `wait` says that it ended; a terminal's line is gone then."""
    began, terminal = now(), out.isatty()
    while not wait(TERMINAL_SECONDS if terminal else LOG_SECONDS):
        line = f"  {what}: {now() - began:.0f} s"
        out.write(f"{_CLEAR_LINE}{line}" if terminal else f"{line} so far\n")
        out.flush()
    if terminal:
        out.write(_CLEAR_LINE)
        out.flush()
