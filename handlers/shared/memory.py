"""Gives memory that is free back to the system.

The plan tells jemalloc to keep every page it was ever given (dirty_decay_ms:-1), because a model's batches
use them again and again; one huge image would stay in the worker's size for ever.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

ALL_ARENAS = 4096
"""MALLCTL_ARENAS_ALL of jemalloc 5."""


BATCH_S = 1.0
"""A batch's bodies are freed when it has been answered; its images take less than this to follow them."""


class MemoryReturn:
    """Gives back what a large image took: at once, and when its batch, bodies and all, is surely gone."""

    def __init__(self) -> None:
        self._owed_since: float | None = None

    def after_large(self) -> None:
        """A large image has been decoded; what it took is free, its batch is not yet."""
        return_memory()
        self._owed_since = time.monotonic()

    def before_next(self) -> None:
        """An image of a later batch comes; costs nothing where nothing is owed."""
        if self._owed_since is not None and time.monotonic() - self._owed_since > BATCH_S:
            self._owed_since = None
            return_memory()


def return_memory() -> None:
    """Takes 4 ms in a worker of ResNet50, and its next batch 10 ms more for page faults (of 360)."""
    _find_way()()


@cache
def _find_way() -> Callable[[], object]:
    """Of the allocator that malloc resolves to: each exports a function that the others do not have."""
    process = ctypes.CDLL(None)
    if hasattr(process, "mallctl"):
        purge = f"arena.{ALL_ARENAS}.purge".encode()
        return lambda: process.mallctl(purge, None, None, None, ctypes.c_size_t(0))
    if hasattr(process, "MallocExtension_ReleaseFreeMemory"):
        return process.MallocExtension_ReleaseFreeMemory
    if hasattr(process, "malloc_trim"):
        return lambda: process.malloc_trim(ctypes.c_size_t(0))
    return lambda: None
