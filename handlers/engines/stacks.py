"""The stacks: which engines can be installed beside each other.

Each has an environment and archives of its own: an engine may run with one torch alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from handlers.engines import ENGINES
from handlers.engines.engine import STACKS

DEFAULT_STACK = STACKS[0]


def list_of_stack(stack: str) -> tuple[str, ...]:
    """Its engines, the one that computes unless BACKEND says otherwise first."""
    return tuple(name for name, engine in ENGINES.items() if stack in engine.stacks)


def read_stack(prefix: Path) -> str:
    """That of an environment, by what its set-up wrote; the default where no set-up of ours was."""
    try:
        return str(json.loads((prefix / "setup.json").read_text(encoding="utf-8"))["stack"])
    except (OSError, ValueError, KeyError):
        return DEFAULT_STACK


def name_store(stack: str) -> str:
    """The folder of its archives, beside the code."""
    return "model-store" if stack == DEFAULT_STACK else f"model-store-{stack}"
