"""One line per step with its seconds: counting on a terminal, written once in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

WIDTH = (
    58  # of the step's name: with the seconds it fits 80 columns, and a wrapped line could not be rewritten
)


@contextmanager
def step(name: str, out: TextIO | None = None) -> Iterator[None]:
    """Print `name … 12 s ok`; on a terminal the seconds count while the step runs."""
    out = out or sys.stdout
    began, done = time.monotonic(), threading.Event()
    label = f"  {name} ".ljust(WIDTH, ".")[:WIDTH]
    print(label, end="", file=out, flush=True)
    ticker = threading.Thread(target=_tick, args=(label, began, done, out), daemon=True)
    if out.isatty():
        ticker.start()
    verdict = "failed"
    try:
        yield
        verdict = "ok"
    finally:
        done.set()
        if ticker.ident:
            ticker.join()
        start = f"\r{label}" if out.isatty() else ""
        print(f"{start} {time.monotonic() - began:4.0f} s {verdict}", file=out, flush=True)


def _tick(label: str, began: float, done: threading.Event, out: TextIO) -> None:
    while not done.wait(1.0):
        print(f"\r{label} {time.monotonic() - began:4.0f} s", end="", file=out, flush=True)


def human_size(count: int) -> str:
    """Bytes as a person says them: `7.1 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
