"""What a worker counts of its batches, in a file of prometheus_client; the supervisor adds up all of them.

The folder is PROMETHEUS_MULTIPROC_DIR, which the server sets; where it is not set (a build, a test) nothing
is counted. No line of a log for a request, and nothing that TorchServe parses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER, SLO = "PROMETHEUS_MULTIPROC_DIR", "CPU_KIT_SLO_MS"
BEGAN = "x-kit-began-us"
"""Header of a request: when the reverse proxy got it, in µs of the system's clock."""
FILE_BYTES = 256 << 10
"""Some 100 values of at most 300 bytes each; they are taken from the disk at once, as a page that a full disk
cannot give later would end the worker (SIGBUS)."""
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Edges of the buckets as shares of SLO_P99_MS: it is one itself, and near it p99 is found within a tenth."""
COUNTS = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0)
TOKENS = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
EFFICIENCY = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
STAGES = ("wait", "decode", "model", "encode")
SECONDS, REQUESTS = "cpukit_worker_seconds", "cpukit_batch_requests"
BATCH_TOKENS, PACKING = "cpukit_batch_tokens", "cpukit_packing_efficiency"
METRICS: Mapping[str, tuple[str, Sequence[str]]] = {
    SECONDS: (
        "Time of a request by stage: wait (since it reached the reverse proxy), decode, model, encode",
        ("model", "stage"),
    ),
    REQUESTS: ("Requests in a batch", ("model",)),
    BATCH_TOKENS: ("Tokens that a batch of texts computed, padding among them", ("model",)),
    PACKING: ("Share of a batch's computed tokens that are the texts' own", ("model",)),
}
"""Histogram → help, labels."""


def find_buckets(slo_s: float) -> tuple[float, ...]:
    """Edges in seconds."""
    return tuple(round(slo_s * share, 6) for share in SHARES)


class BatchMetrics:
    """Of one model, in this process; without a folder nothing is counted. OSError: no room for the file."""

    def __init__(self, model: str, folder: str = "") -> None:
        self._seconds: dict[str, Any] = {}
        if not folder:
            return
        with (Path(folder) / f"histogram_{os.getpid()}.db").open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        from prometheus_client import CollectorRegistry, Histogram

        def make(name: str, buckets: Sequence[float]) -> Any:
            text, labels = METRICS[name]
            return Histogram(name, text, labels, buckets=buckets, registry=CollectorRegistry())

        seconds = make(SECONDS, find_buckets(float(os.environ[SLO]) / 1000))
        self._seconds = {stage: seconds.labels(model, stage) for stage in STAGES}
        self._requests = make(REQUESTS, COUNTS).labels(model)
        self._tokens = make(BATCH_TOKENS, TOKENS).labels(model)
        self._packing = make(PACKING, EFFICIENCY).labels(model)

    def observe(
        self, waits_s: Sequence[float], stages_s: Mapping[str, float], *, tokens: int, computed_tokens: int
    ) -> None:
        """One batch: how long each of its requests waited, and the stages after that, which all of them spend
        in the whole batch."""
        if not self._seconds:
            return
        self._requests.observe(len(waits_s))
        if computed_tokens:
            self._tokens.observe(computed_tokens)
            self._packing.observe(tokens / computed_tokens)
        for wait_s in waits_s:
            for stage, seconds in {"wait": wait_s, **stages_s}.items():
                self._seconds[stage].observe(seconds)


def find_wait_s(headers: Mapping[str, Any]) -> float:
    """Since a request came; 0 where it did not come through the reverse proxy, or the clock was set back."""
    began = str(headers.get(BEGAN, ""))
    return max(0.0, time.time() - int(began) / 1e6) if began.isdecimal() else 0.0
