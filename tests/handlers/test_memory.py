"""What a huge image took goes back to the system: at once, and again when its batch is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handlers.shared import memory

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    "jemalloc": Path("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
    "tcmalloc": Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    "system": None,
}
PROBE = """
import ctypes
from handlers.shared.memory import return_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
library.free.argtypes = (ctypes.c_void_p,)
# Blocks below glibc's threshold for mmap, which would be given back by themselves.
blocks = [library.malloc(100_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
# The heap's end stays taken.
last = library.malloc(100_000)
for block in blocks:
    library.free(block)
before = resident_mib()
return_memory()
print(before - resident_mib())
"""


@pytest.mark.parametrize("allocator", LIBRARIES)
def test_free_pages_are_given_back(allocator):
    library = LIBRARIES[allocator]
    if library is not None and not library.exists():
        pytest.skip(f"{library} is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library or "")}
    environment["MALLOC_CONF"] = "oversize_threshold:1,dirty_decay_ms:-1,muzzy_decay_ms:-1"
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 80


@pytest.fixture
def returned(monkeypatch) -> list[float]:
    """The times at which memory was given back; the clock says `returned[0]`."""
    times = [100.0]
    monkeypatch.setattr(memory, "return_memory", lambda: times.append(times[0]))
    monkeypatch.setattr(memory.time, "monotonic", lambda: times[0])
    return times


def test_the_batch_of_a_large_image_is_given_back_once_it_is_gone(returned):
    debt = memory.MemoryReturn()
    debt.after_large()
    assert returned[1:] == [100.0]
    # Of the same batch.
    debt.before_next()
    assert returned[1:] == [100.0]
    returned[0] = 101.5
    debt.before_next()
    debt.before_next()
    assert returned[1:] == [100.0, 101.5]
