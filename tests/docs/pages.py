"""Reads the pages people read: their code, links, headings, and what the code offers to be named there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from config.commands import COMMANDS
from config.settings import FIELDS, PUBLIC

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
MADE = ("run", ".venv", "docker/secrets", "model-store", "models/ticket-router", "models/which-library")
"""Folders of what is made by commands: nothing in them is in a checkout."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read_blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks: kind and content."""
    return _FENCE.findall(text)


def remove_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def read_code(text: str) -> list[str]:
    """Blocks and spans, each span on one line."""
    spans = [" ".join(span.split()) for span in _SPAN.findall(remove_blocks(text))]
    return [block for _, block in read_blocks(text)] + spans


def read_links(text: str) -> list[str]:
    return _LINK.findall(remove_blocks(text))


def read_anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", remove_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find_targets(code: str) -> list[str]:
    """What `make` is asked for: its words up to the end of the command, without values."""
    bare = re.sub(r"""[A-Z][A-Z0-9_]*=("[^"]*"|'[^']*'|\S)+""", "", code)
    commands = re.findall(r"\bmake((?: +[a-z][a-z0-9-]*)+)", bare)
    return [word for words in commands for word in words.split()]


def find_settings(code: str) -> list[str]:
    """NAME of NAME=…; a variable of the shell, set to what a command prints, is none."""
    return re.findall(r"(?<![\w$\"'-])([A-Z][A-Z0-9_]*)=(?!\$\()", code)


def find_paths(code: str) -> list[str]:
    """Words that begin with a folder of the tree; a placeholder stands for anything."""
    words = re.findall(r"(?<![\w/.:@…-])[\w.-]+/[\w./<>*{},-]*", code)
    paths = [re.sub(r"<[^>]*>", "*", word.rstrip(".,/")) for word in words]
    return [path for path in paths if path.split("/")[0] in list_folders() and not path.startswith(MADE)]


@cache
def list_folders() -> frozenset[str]:
    """Top-level folders of the tree."""
    return frozenset(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")


@cache
def list_targets() -> frozenset[str]:
    return frozenset(COMMANDS)


@cache
def list_settings() -> frozenset[str]:
    """Those of make, environment and programs, and what the image's build and compose take besides."""
    build = re.findall(r"^ARG (\w+)", (ROOT / "docker/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    compose = re.findall(r"\$\{(\w+)", (ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))
    return frozenset([*FIELDS, *(f"KIT_{name}" for name in PUBLIC), *build, *compose])
