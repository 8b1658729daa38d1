"""How long a kit server took to start, and its workers in it, as plain values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.systems.system import System
from server.processes import Process, find_marked
from server.state import read_state

_TICKS = os.sysconf("SC_CLK_TCK")


def read_start(system: System, arguments: Sequence[str]) -> dict[str, Any]:
    """What server.json, the processes and the workers tell of a server that is up.

    `server_seconds`: from the start of TorchServe to the last right canary answer, Java and unpacking
    included; `worker_seconds`: from the birth of the first worker's process, or its launcher's, to the same
    moment; `load_seconds`: of each worker, from the handler's start to all shapes warmed and checked.
    """
    state = read_state(system.run.state) if system.run else None
    if system.run is None or state is None or state.seconds_to_ready is None:
        raise LoadTestError(f"{system.name}: its server.json does not say how long the start took")
    described = [one for model in system.models for one in system.describe_workers(model)]
    return {
        "arguments": list(arguments),
        "server_seconds": state.seconds_to_ready,
        "worker_seconds": state.seconds_to_ready - find_worker_birth(find_marked(system.run.path)),
        "load_seconds": [one["load_seconds"] for one in described],
    }


def find_worker_birth(processes: Sequence[Process]) -> float:
    """Seconds from the first process of a server to the first that was started for a worker."""
    workers = [process.start_ticks for process in processes if process.is_worker or process.is_launcher]
    if not workers:
        raise LoadTestError("the server has no worker process")
    return (min(workers) - min(process.start_ticks for process in processes)) / _TICKS
