"""How long a kit server with one model took to start, and its workers in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.servers import Server
from server.processes import Process, find_marked
from server.state import read_state

VARIANT = "another archive"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start."""

    model: str
    arguments: tuple[str, ...]
    """Of `python -m config`, without store and ports."""
    server_seconds: float
    """From the start of TorchServe to the last right canary answer: Java and unpacking included."""
    worker_seconds: float
    """From the birth of the first worker's process, or its launcher's, to the same moment."""
    load_seconds: tuple[float, ...]
    """Of each worker: from the handler's start to all shapes warmed and checked."""


def read_start(server: Server, arguments: tuple[str, ...], described: Sequence[Mapping[str, Any]]) -> Start:
    """What server.json, the processes and the workers tell of a server that is up."""
    state = read_state(server.run.state)
    if state is None or state.seconds_to_ready is None:
        raise LoadTestError(f"{server.name}: {server.run.state} does not say how long the start took")
    return Start(
        model=server.model,
        arguments=arguments,
        server_seconds=state.seconds_to_ready,
        worker_seconds=state.seconds_to_ready - find_worker_birth(find_marked(server.run.path)),
        load_seconds=tuple(one["load_seconds"] for one in described),
    )


def find_worker_birth(processes: Sequence[Process]) -> float:
    """Seconds from the first process of a server to the first that was started for a worker."""
    workers = [process.start_ticks for process in processes if process.is_worker or process.is_launcher]
    if not workers:
        raise LoadTestError("the server has no worker process")
    return (min(workers) - min(process.start_ticks for process in processes)) / _TICKS
