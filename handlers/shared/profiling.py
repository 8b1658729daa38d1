"""Looks into the live model on demand: PyTorch's profiler, oneDNN's log, or VTune's ranges around so many of
the next runs.

Asked for by a header of the describe call, which only a holder of the management token can make; what was
seen is fetched by the next one. Bounded in runs and in lines, and nothing is looked at until it is asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from handlers.backends.catalogue import BACKENDS
from handlers.shared.errors import BadRequest

HEADER = "x-cpu-kit-profile"
"""`operators=8 onednn=2`, or `result`. TorchServe hands a describe call's headers to the handler."""
RESULT = "result"
MOST_RUNS = 32
"""Of the model, for each kind of look: they cost the requests in them some tens of milliseconds each."""
MOST_LINES = 4000
"""Of oneDNN's log; a run of ResNet50 writes 120."""
KINDS = ("operators", "onednn", "itt")
COPIES = {"torch": "torch._C._verbose", **{one.name: one.onednn for one in BACKENDS.values() if one.onednn}}
"""Of oneDNN, each with its switch. Only what is loaded is asked."""
_WISH = re.compile(r"(\w+)=(\d+)")


def find_wish(headers: Mapping[str, Any]) -> str:
    """The header's value; clients write its name in any case."""
    return next((str(value) for name, value in headers.items() if name.lower() == HEADER), "")


def parse_wish(text: str) -> dict[str, int]:
    """Kind → number of runs; BadRequest says what may be asked for."""
    wish = {kind: int(runs) for kind, runs in _WISH.findall(text)}
    if not wish or not set(wish) <= set(KINDS) or not all(1 <= runs <= MOST_RUNS for runs in wish.values()):
        raise BadRequest(
            400,
            f"{HEADER} must be `{RESULT}`, or {', '.join(KINDS)} with 1 to {MOST_RUNS} runs each, such as "
            f"`operators=8`: got {text[:100]}",
        )
    return wish


class Profiler:
    """Of one worker: it is in the way of no run that nobody asked to look at."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._seen: dict[str, Any] = {}

    def ask(self, text: str) -> None:
        """Begin anew with the next run."""
        self._left = parse_wish(text)
        self._seen = {}

    def describe(self) -> dict[str, Any]:
        """What was seen so far, and how many runs are still to come."""
        return {"left": {kind: runs for kind, runs in self._left.items() if runs}, **self._seen}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around one run of the model."""
        kind = next((one for one, runs in self._left.items() if runs), None)
        if kind is None:
            yield
            return
        self._left[kind] -= 1
        with _WATCHES[kind](self._seen.setdefault(kind, {"runs": 0, "seconds": 0.0})):
            yield


@contextlib.contextmanager
def watch_operators(seen: dict[str, Any]) -> Iterator[None]:
    """Adds a run's operators: calls, own and whole microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler, _timed(seen):
        yield
    table = seen.setdefault("operators", {})
    for one in profiler.key_averages():
        calls, own, whole = table.get(one.key, (0, 0.0, 0.0))
        table[one.key] = (calls + one.count, own + one.self_cpu_time_total, whole + one.cpu_time_total)


@contextlib.contextmanager
def watch_onednn(seen: dict[str, Any]) -> Iterator[None]:
    """Adds a run's lines of oneDNN's log; other lines that come meanwhile go where they would have gone."""
    lines = seen.setdefault("lines", [])
    with tempfile.TemporaryFile() as log:
        with _turned(1, log.fileno()), _speaking(seen), _timed(seen):
            yield
        log.seek(0)
        text = log.read().decode(errors="replace")
    for line in text.splitlines():
        if not line.startswith(("onednn_verbose", "dnnl_verbose")):
            print(line, flush=True)
        elif len(lines) < MOST_LINES:
            lines.append(line)
        else:
            seen["dropped"] = seen.get("dropped", 0) + 1


@contextlib.contextmanager
def watch_itt(seen: dict[str, Any]) -> Iterator[None]:
    """A range for each operator and each run, for VTune where it is attached (Intel's ITT); else nothing."""
    from torch.autograd.profiler import emit_itt
    from torch.profiler import itt

    with emit_itt(), itt.range("model"), _timed(seen):
        yield


@contextlib.contextmanager
def _timed(seen: dict[str, Any]) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        seen["runs"] += 1
        seen["seconds"] += time.perf_counter() - began


@contextlib.contextmanager
def _turned(descriptor: int, file: int) -> Iterator[None]:
    """Libraries write with printf and flush each line: the descriptor is turned, not Python's object."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(descriptor)
    os.dup2(file, descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _speaking(seen: dict[str, Any]) -> Iterator[None]:
    """PyTorch's copy of oneDNN, and a backend's own where it is loaded; `copies` says which did as told."""
    switches = {name: sys.modules[module] for name, module in COPIES.items() if module in sys.modules}
    seen["copies"] = [name for name, copy in switches.items() if copy.mkldnn_set_verbose(1)]
    try:
        yield
    finally:
        for copy in switches.values():
            copy.mkldnn_set_verbose(0)


_WATCHES = {"operators": watch_operators, "onednn": watch_onednn, "itt": watch_itt}


class Phases:
    """How long requests were in each part of the handler, so far: seconds times requests.

    All requests of a batch wait for the whole of it, so each batch counts as often as it has requests.
    """

    def __init__(self) -> None:
        names = ("requests", "batches", "read_s", "model_s", "whole_s")
        self._counts: dict[str, float] = dict.fromkeys(names, 0)
        self.last_s: dict[str, float] = {}
        """Of the newest batch: decode, model, encode."""

    def count(self, requests: int, *, read_s: float, model_s: float, whole_s: float) -> None:
        """Add one batch."""
        self.last_s = {"decode": read_s, "model": model_s, "encode": max(0.0, whole_s - read_s - model_s)}
        self._counts["batches"] += 1
        self._counts["requests"] += requests
        for name, seconds in (("read_s", read_s), ("model_s", model_s), ("whole_s", whole_s)):
            self._counts[name] += seconds * requests

    def describe(self) -> dict[str, float]:
        """By name."""
        return dict(self._counts)
