"""Reads the Makefile as text: which values each target uses, by itself and by what it needs first."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RAW = (ROOT / "Makefile").read_text().replace("\\\n", " ")
TEXT = re.sub(r"\$\((?:value |call given,|call listed,)([A-Z0-9_]+)\)", r"$(\1)", RAW)
"""What is quoted and how is tests/config/knobs/test_quoting.py's."""
DEFINED = dict(re.findall(r"^([A-Z][A-Z0-9_]*) *[?:]?= *(.*)$", TEXT, re.MULTILINE))
DEFAULTS = dict(re.findall(r"^([A-Z][A-Z0-9_]*) *\?= *(.*)$", TEXT, re.MULTILINE))
SOURCES = {name: text for name, text in DEFINED.items() if name not in DEFAULTS}
"""What is put together of other values; what may be given is not."""
RULES = re.findall(r"^([a-z][a-z0-9-]*):(?!=)([^\n#]*)(#[^\n]*)?\n((?:\t.*\n|#.*\n)*)", TEXT, re.MULTILINE)
NEEDS = {target: needs for target, needs, _, _ in RULES}
RECIPES = {target: recipe for target, _, _, recipe in RULES}
COMMANDS = [target for target, _, text, _ in RULES if text.startswith("## ")]
OF_MAKE = {"MAKEFILE_LIST", "MAKECMDGOALS", "MAKELEVEL", "GIVEN", "KNOBS"}
"""The check's own; it is no use of a value."""
CHOOSING = re.compile(r"\$\(filter[a-z-]* [^$,()]*,|\$\(origin [^()]*\)")
"""Words that are compared with, not used."""


def find_references(text: str) -> set[str]:
    """Names of values, as $(NAME), in $(if $(NAME),…) and in $(call F,$(NAME))."""
    return set(re.findall(r"\$\(([A-Z][A-Z0-9_]*)\)", CHOOSING.sub(" ", text))) - OF_MAKE


def find_values(text: str) -> set[str]:
    """The values a text uses in the end."""
    found: set[str] = set()
    for name in find_references(text):
        found |= find_values(SOURCES[name]) if name in SOURCES else {name}
    return found


def find_needs(text: str) -> set[str]:
    """The targets named in a list of needs, through the values it is made of."""
    plain = CHOOSING.sub(" ", text)
    words = set(re.findall(r"(?<![\w/-])[a-z][a-z0-9-]*(?![\w/-])", plain)) & {*RECIPES}
    for name in find_references(text) & {*SOURCES}:
        words |= find_needs(SOURCES[name])
    return words


def read_uses(target: str, without: frozenset[str] = frozenset()) -> set[str]:
    """The values that making a target uses; not those of the targets `without`."""
    seen, left, used = set(without), [target], set()
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            used |= find_values(RECIPES[one])
            left += find_needs(NEEDS[one])
    return used
