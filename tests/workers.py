"""How many workers a test run has (pytest-xdist), and what they share."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.topology import count_usable_cores, read_topology

WORKER_MIB = 4096
"""One that has imported everything holds 2 GiB, and what it starts as much."""


def count_cpus() -> int:
    """Those we may use all the time."""
    machine = read_topology()
    return count_usable_cores(len(machine.cpus_allowed), machine.quota_cpus)


def count_workers(*, cpus: int, mib: int) -> int:
    """As many as have so much each; at least one."""
    return max(1, min(count_cpus() // cpus, read_topology().memory_limit_mib // mib))


@contextlib.contextmanager
def for_all_workers(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder that the workers of one test run share, held by one of them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
