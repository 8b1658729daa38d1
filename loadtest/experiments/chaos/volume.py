"""A small file system for a run directory, so that a full disk harms nobody else; needs root and tmpfs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError

SIZE_BYTES = 2 << 30
"""More than unpacked archives and logs take; tmpfs takes memory for what is in it alone."""
SPARE_BYTES = 64 << 10
_FILLER = "filler"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """One that is mounted."""

    path: Path

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, path: Path) -> Iterator[Volume | None]:
        """None where it cannot be mounted; the logs in it are copied beside it before it goes."""
        path.mkdir(parents=True)
        if not _call("mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=0755", "tmpfs", str(path)):
            yield None
            return
        try:
            yield cls(path=path)
        finally:
            keep_logs(path, path.with_name(f"{path.name}-logs"))
            # Lazily, where somebody still looks at a file in it.
            _call("umount", str(path)) or _call("umount", "--lazy", str(path))

    def fill(self) -> None:
        """No byte is left: the size becomes what is used, and a file takes the rest."""
        stat = os.statvfs(self.path)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        if not _call("mount", "-o", f"remount,size={used + SPARE_BYTES}", str(self.path)):
            raise LoadTestError(f"{self.path} could not be made smaller")
        with contextlib.suppress(OSError), (self.path / _FILLER).open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def empty(self) -> None:
        """There is room again."""
        (self.path / _FILLER).unlink(missing_ok=True)
        _call("mount", "-o", f"remount,size={SIZE_BYTES}", str(self.path))


def keep_logs(source: Path, target: Path) -> None:
    """Of the whole and of each instance: they are evidence."""
    for folder in [*source.glob("**/logs"), *source.glob("**/logs.previous")]:
        shutil.copytree(folder, target / folder.relative_to(source), dirs_exist_ok=True)


def _call(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False
