"""Reads requirements/: which sets exist, what is pinned, a digest that changes when an installation would."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from setup.errors import SetupError

CONSTRAINTS = "constraints.txt"
HASHES = "hashes"
"""Folder of the sets as they are installed: each package with its hashes, but torch and what comes with it,
whose source is a choice."""
SERVE = "serve"
TORCH = ("torch", "torchvision")
"""Installed apart from the set, as where they come from is a choice."""
STACKS = ("ipex", "current")
"""What an environment can be for. The first one's requirements lie in the folder itself, another's in one of
its name."""


def read_sets(folder: Path) -> list[str]:
    """The names that `--with` takes; `serve` is always installed."""
    return sorted(path.stem for path in folder.glob("*.txt") if path.name != CONSTRAINTS)


def find_stack(folder: Path, stack: str) -> Path:
    """Where the requirements of STACK are; SetupError when there is none of this name."""
    if stack not in STACKS:
        raise SetupError(f"STACK must be one of {', '.join(STACKS)}: got {stack}")
    return folder if stack == STACKS[0] else folder / stack


def read_pins(folder: Path) -> dict[str, str]:
    """Package → version, of all that serve.txt pins with `==`; SetupError of no torch or torchvision."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (folder / f"{SERVE}.txt").read_text(), re.MULTILINE))
    for name in TORCH:
        if name not in pins:
            raise SetupError(f"{folder.name}/{SERVE}.txt: must pin {name} with `==`: no such line")
    return pins


def digest(folder: Path, name: str) -> str:
    """Of one set and the constraints; comments and blank lines do not count."""
    lines = [*_bare_lines(folder / f"{name}.txt"), "--", *_bare_lines(folder / CONSTRAINTS)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: digest(folder, name) for name in names}


def _bare_lines(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]
