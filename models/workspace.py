"""A private folder for each build, on a real disk: a BERT needs about 1 GB, and /tmp is often memory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def open_workspace(parent: Path, name: str) -> Iterator[Path]:
    """A new folder below `parent`, gone afterwards; folders of builds that were killed go first."""
    with _locked(parent):
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(parent: Path) -> None:
    for folder in (path for path in parent.iterdir() if path.is_dir()):
        with suppress(BlockingIOError):
            lock = _lock(folder, fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Between making a folder and locking it, no other build may take it for a dead one's."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path, flags: int = 0) -> int:
    """A descriptor that holds the lock; the kernel frees it with the process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
