"""Reads what TorchServe 0.12 logged of its configuration at its start (ConfigManager.dumpConfigurations)."""

from __future__ import annotations

import re
from pathlib import Path

_FIRST = "Torchserve version: "
_LAST = "Model API enabled: "


def read_configuration(log: Path) -> dict[str, str]:
    """Name → value as TorchServe prints them; {} when the log does not have them.

    Read it soon after the start: later the log may have been rolled over.
    """
    try:
        return parse_configuration(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def parse_configuration(text: str) -> dict[str, str]:
    """The `Name: value` lines of the first such block; {} when there is none."""
    match = re.search(rf"^{_FIRST}.*?^{_LAST}[^\n]*$", text, re.MULTILINE | re.DOTALL)
    lines = match[0].splitlines() if match else []
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}
