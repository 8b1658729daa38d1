"""Writes the table for people: the lists of `make help`, and docs/knobs.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from config.knobs.knob import EVERY, Knob
from config.knobs.table import GROUPS

WIDTH = 110
NAME_WIDTH = 18
MOST_USED = tuple(GROUPS)[:2]
INTRODUCTION = """\
# Knobs

Written by `python3 -m config.knobs markdown` from `config/knobs/table.py`; edits are lost.

Give them to a command, as in `make serve PRECISION=bf16 WORKERS=2`, or in its environment. What is not given
is decided, mostly from the machine: `make plan DRY_RUN=1` prints the plan with all reasons and writes
nothing. A wrong value is answered with the allowed ones. Paths may hold blanks, quotes, commas and whatever
else a name may, in UTF-8 and on one line; a `~` is your shell's to expand, or write `$HOME`.

A misspelt name is refused with the one that is meant. On make's command line that is any name that is no
knob; one that none of the commands reads is refused too. In the environment, of make and of the container, it
is a knob's name in small letters or with one slip in it; knobs of five letters or fewer are left out, because
`USER` and `CPU` are ordinary names. Compose hands over only the names in `docker/compose.yaml`: a wrong one
there is refused by the container, one in your shell by `python3 -m config.knobs compose`, to be run first.

*Container*: an environment variable of the image, too. *Compose*: a variable of `docker/compose.yaml`, with
its default there in brackets; what has none is decided inside, for the container's limits.
"""


def render_help(groups: Sequence[str] = tuple(GROUPS)) -> str:
    """For a terminal, by group."""
    return "\n\n".join("\n".join([f"{title}:", *map(_render_line, GROUPS[title])]) for title in groups)


def _render_line(knob: Knob) -> str:
    default = f" ({knob.default})" if knob.default else ""
    gap = " " * (NAME_WIDTH + 2)
    return textwrap.fill(
        f"{knob.meaning}{default}",
        WIDTH,
        initial_indent=f"  {knob.name:<{NAME_WIDTH}}",
        subsequent_indent=gap,
    )


def render_markdown() -> str:
    """docs/knobs.md."""
    parts = [f"## {title}\n\n" + "\n".join(map(_render_item, knobs)) for title, knobs in GROUPS.items()]
    return "\n\n".join([INTRODUCTION.strip(), *parts]) + "\n"


def _render_item(knob: Knob) -> str:
    """A list item; a line is broken at blanks alone, so that no name is cut."""
    values = f" One of {_quote(knob.choices)}." if knob.choices else ""
    default = f" Default: {knob.default}." if knob.default else ""
    text = f"- **`{knob.name}`**: {knob.help}.{values}{default}{_render_places(knob)}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _render_places(knob: Knob) -> str:
    places = ["every command" if knob.commands == EVERY else f"make {', '.join(knob.commands)}"]
    if knob.container:
        places.append("container")
    if knob.compose is not None:
        places.append(f"compose ({knob.compose})" if knob.compose else "compose")
    return f" *Read by {'; '.join(places)}.*"


def _quote(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)
