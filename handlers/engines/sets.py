"""Package sets: which engines are installed beside each other, with a torch that they run with.

Each has an environment and archives of its own, and a server has one. This file imports nothing of ours: the
Makefile and the image ask it what BACKEND means before anything is installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SETS = {"ipex": ("ipex", "eager"), "current": ("openvino", "inductor", "eager")}
"""The engines of each (requirements/NAME/); the first one computes what BACKEND does not name."""
DEFAULT_SET = "ipex"


def choose_set(backend: str) -> str:
    """The set that has all that BACKEND names; ValueError where none has."""
    known = {engine for engines in SETS.values() for engine in engines}
    words = [word for word in backend.replace(",", " ").split() if word.rpartition("=")[2] in known]
    needed = {word.rpartition("=")[2] for word in words}
    for name, engines in SETS.items():
        if needed <= {*engines}:
            return name
    homes = {word: [name for name in SETS if word.rpartition("=")[2] in SETS[name]] for word in words}
    told = ", ".join(f"{word} needs {names[0]}" for word, names in homes.items() if len(names) == 1)
    raise ValueError(
        f"BACKEND must name engines of one package set, because each has a torch of its own: got {told}; "
        "do: serve them by two servers, each with its own RUN_DIR and PORT"
    )


def read_set(prefix: Path) -> str | None:
    """That of an environment, by what its set-up wrote; None where no set-up of ours was."""
    try:
        return str(json.loads((prefix / "setup.json").read_text(encoding="utf-8"))["set"])
    except (OSError, ValueError, KeyError):
        return None


def find_set() -> str:
    """Of the environment that runs this."""
    return read_set(Path(sys.prefix)) or DEFAULT_SET


def name_store(package_set: str) -> str:
    """The folder of its archives, beside the code."""
    return "model-store" if package_set == DEFAULT_SET else f"model-store-{package_set}"


if __name__ == "__main__":
    print(choose_set(sys.argv[1]))
