"""Follows a log file that may not be there yet, and that is renamed or emptied when it is full."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


class Follower:
    """Gives what was written since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def skip(self) -> None:
        """What is there is of an earlier run."""
        self._read_open()
        self._rest = b""

    def read_lines(self) -> list[str]:
        """Whole new lines; of a file that was renamed, first its end."""
        lines = self._read_open()
        if self._is_another():
            self._close()
            lines += self._read_open()
        return lines

    def _read_open(self) -> list[str]:
        if self._file is None:
            try:
                self._file = self.path.open("rb")
            except OSError:
                return []
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in whole if line.strip()]

    def _is_another(self) -> bool:
        """Whether the name now stands for another file than the open one."""
        if self._file is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False  # renamed, and the new one not made yet

    def _close(self) -> None:
        if self._file:
            self._file.close()
        self._file, self._rest = None, b""
