"""Gives memory that is free back to the system.

The plan tells jemalloc to keep every page it was ever given (dirty_decay_ms:-1), because a model's batches
use them again and again; one huge picture would stay in the worker's size for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

ALL_ARENAS = 4096
"""MALLCTL_ARENAS_ALL of jemalloc 5."""


def return_memory() -> None:
    """Takes 1 ms for each 10 MiB or so; whoever needs pages next pays for them again."""
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
