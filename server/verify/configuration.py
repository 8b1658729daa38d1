"""Reads what TorchServe 0.12 logged of its configuration at its start (ConfigManager.dumpConfigurations)."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from server.rundir import RunDir

_FIRST = "Torchserve version: "
_LAST = "Model API enabled: "
# It is among the first lines of a log that has not been rolled over yet.
_READ_BYTES = 256 << 10


def read_configuration(run: RunDir) -> dict[str, str] | None:
    """Name → value as TorchServe prints them; None when no log of this start has them any more."""
    rolled = sorted(run.logs.glob(f"{run.server_log.stem}.*.gz"))  # 1 is the oldest (log4j2.xml)
    for log in (*rolled, run.server_log):
        found = parse_configuration(_read_head(log))
        if found:
            return found
    return None


def parse_configuration(text: str) -> dict[str, str]:
    """The `Name: value` lines of the first such block; {} when there is none."""
    match = re.search(rf"^{_FIRST}.*?^{_LAST}[^\n]*$", text, re.MULTILINE | re.DOTALL)
    lines = match[0].splitlines() if match else []
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}


def _read_head(log: Path) -> str:
    try:
        with gzip.open(log) if log.suffix == ".gz" else log.open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")
    except (OSError, EOFError):
        return ""
