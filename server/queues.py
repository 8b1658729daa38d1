"""Reads a model's queue from TorchServe's own description of the model (ApiUtils.createModelResponse)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.api import Client

# Of a queue under load, so that one of them counts taken and free places in the same moment.
_LOOKS = 5


def count_waiting(described: Mapping[str, Any]) -> int:
    """Requests that wait; 0 when TorchServe does not say."""
    return int((described.get("jobQueueStatus") or {}).get("pendingRequests") or 0)


def read_sizes(model: str, client: Client, described: Mapping[str, Any]) -> tuple[int, ...]:
    """Taken and free places together, as often as looked.

    TorchServe counts them one after the other, and requests come and go in between. So under load it is
    looked again, and one look with the planned sum is proof: chance does not make it of another size.
    """
    sizes = []
    for _ in range(_LOOKS):
        queue = described.get("jobQueueStatus") or {}
        taken, free = queue.get("pendingRequests"), queue.get("remainingCapacity")
        if taken is None or free is None:
            break
        sizes.append(int(taken) + int(free))
        if not taken:
            break
        described = client.describe(model)
    return tuple(sizes)
