"""What is asked of a system beside a load: its own accounts of time, its operators, oneDNN's log."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loadtest.experiments.profile.onednn import MARKERS
from loadtest.systems.system import System
from loadtest.trials.block import Seen

WISH = "operators=8 onednn=2"
"""Runs of the model in each worker: with fewer, one odd batch decides; each costs its batch some ms."""
RESULT = "result"
QUEUE, LATENCY = "ts_queue_latency_microseconds", "ts_inference_latency_microseconds"
"""TorchServe 0.12, counters of RestJob.java: until a worker takes the request, and until its answer."""
_SAMPLE = re.compile(r"^(\w+)\{([^}]*)\} ([0-9.eE+-]+)$", re.MULTILINE)
MOST_LOG_LINES = 20_000


def parse_counters(text: str, model: str) -> dict[str, float]:
    """Of one model, from Prometheus' text form, all label sets together."""
    own = f'model_name="{model}"'
    found = [(name, float(value)) for name, labels, value in _SAMPLE.findall(text) if own in labels]
    told = {name for name, _ in found} & {QUEUE, LATENCY}
    return {one: sum(value for name, value in found if name == one) / 1e6 for one in told}


def read_account(system: System) -> dict[str, float]:
    """Seconds times requests so far, of the handler's parts and of TorchServe; empty where nobody tells."""
    (model,) = system.models
    if system.run is None or system.plan is None:
        return {}
    found: Counter[str] = Counter()
    for one in system.describe_workers(model):
        found.update(one.get("phases", {}))
    return {**found, **parse_counters(system.client.metrics(), model)}


@contextlib.contextmanager
def watch_phases(system: System) -> Iterator[Seen]:
    """What a load adds to the system's own accounts; nothing is asked while it is on."""
    seen, before = Seen(), read_account(system)
    yield seen
    after = read_account(system)
    seen.values["account"] = {name: after[name] - before.get(name, 0.0) for name in after}


@contextlib.contextmanager
def watch_operators(system: System) -> Iterator[Seen]:
    """Asked before the load, so that its first runs are looked at; fetched behind it."""
    seen, (model,) = Seen(), system.models
    if system.is_kit:
        system.describe_workers(model, profile=WISH)
    yield seen
    if system.is_kit:
        told = system.describe_workers(model, profile=RESULT)
        seen.values["profiles"] = [{"pid": one["pid"], **one.get("profile", {})} for one in told]


def read_logged(system: System) -> Mapping[str, Any]:
    """oneDNN's lines in the model log of a server that was started with ONEDNN_VERBOSE=1, the last ones."""
    if system.run is None:
        return {}
    file = system.run.logs / "model_log.log"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    return {"onednn_lines": take_marked(lines)}


def take_marked(lines: Iterable[str]) -> list[str]:
    """Without what a logger wrote before them; the header first, then the last ones."""
    marked = [line[line.index(one) :] for line in lines for one in MARKERS if f"{one}," in line]
    header = [line for line in marked if ",info," in line]
    return [*header, *[line for line in marked if ",info," not in line][-MOST_LOG_LINES:]]
