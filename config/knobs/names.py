"""Refuses names that are no knob, or none of what is asked for, and says which one is meant."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from config.knobs.knob import Knob
from config.knobs.table import KNOBS, SWITCH

SHORTEST = 6
"""Letters of the shortest knob that an environment's names are compared with. Near to shorter ones are
ordinary names: USER (USERS), PORTS (PORT), DATE (RATE); so are names with something before or behind a
knob's: NWORKERS, PROFILER, OPENMPI, PYTHON3. Without these, of 669 variables that Python, torch, transformers
and what they need look at, none is near to a knob. Two edits would take in MODULES (MODELS)."""
LETTERS_AN_EDIT = 3
"""A name that was given to make on purpose is explained more freely: an edit for each three letters."""
OF_MAKE = frozenset({"SHELL", "MAKE", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKEFILES"})
"""GNU make's own variables, which a command line may set."""

EXPANDS_HOME = frozenset({"WEIGHTS", "CALIBRATION", "EVAL"})
"""A path comes behind a model's name, where no shell looks for `~`: the builder does."""


def check_given(names: Iterable[str], goals: Sequence[str]) -> list[str]:
    """What is wrong with the names on make's command line: each must be a knob that a goal reads."""
    unknown = [_explain_unknown(name) for name in names if name not in KNOBS and name not in OF_MAKE]
    return unknown + [
        _explain_unread(KNOBS[name], goals) for name in names if name in KNOBS and not is_read(name, goals)
    ]


def check_environment(names: Iterable[str], read: Collection[Knob]) -> list[str]:
    """What is wrong with an environment's names: none may be a misspelt one of the knobs that are read."""
    return [
        f"the environment has {name}, which nothing reads and which is nearly {knob.name}; "
        f"do: name it {knob.name}, or unset {name}"
        for name in names
        for knob in read
        if is_misspelt(name, knob.name)
    ]


def check_values(values: Mapping[str, str]) -> list[str]:
    """What is wrong with the text of values, of knobs by name: each must be one line of UTF-8, as recipes,
    configuration files and the paths in them are; a shell leaves a `~` where it does not begin a word; and a
    switch is 0 or 1."""
    wrong = []
    for name, value in values.items():
        if not _is_utf8(value):
            wrong.append(f"{name} must be UTF-8: got {os.fsencode(value)!r}; do: give the path another name")
        elif any(ord(letter) < ord(" ") or letter == "\x7f" for letter in value):
            wrong.append(f"{name} must be one line, without control characters: got {value!r}")
        elif value.startswith("~") and name not in EXPANDS_HOME:
            wrong.append(f"{name} must be a path that the shell has expanded: got {value}; do: write $HOME")
        elif value and KNOBS[name].choices == SWITCH and value not in SWITCH:
            wrong.append(f"{name} must be one of {', '.join(SWITCH)}: got {value}")
    return wrong


def _is_utf8(value: str) -> bool:
    try:
        os.fsencode(value).decode("utf-8")
    except ValueError:
        return False
    return True


def list_read(goals: Sequence[str]) -> list[Knob]:
    """The knobs that are of these goals alone: no slip in PYTHON shall keep a server from being stopped."""
    return [knob for knob in KNOBS.values() if {*goals} & {*knob.commands}]


def is_read(name: str, goals: Sequence[str]) -> bool:
    """Whether a goal reads this knob; one that has none of its own (help, `inputs`) may have any."""
    return any(KNOBS[name].is_read_by(goal) or not _has_knobs(goal) for goal in goals)


def is_misspelt(name: str, knob: str) -> bool:
    """Whether a name that came by itself is this knob's in small letters, or one edit within it."""
    if len(knob) < SHORTEST:
        return False
    if name.upper() == knob:
        return name != knob
    return name[:1] == knob[0] and not name.startswith(knob) and count_edits(name, knob) == 1


def find_nearest(name: str) -> Knob | None:
    """The knob that is meant by a name: the one with the fewest edits, or one that begins so."""
    big = name.upper()
    edits, nearest = min(
        ((count_edits(big, knob.name), knob) for knob in KNOBS.values()), key=lambda pair: pair[0]
    )
    if edits <= len(big) // LETTERS_AN_EDIT:
        return nearest
    begun = [knob for knob in KNOBS.values() if knob.name.startswith(big)]
    return begun[0] if begun and len(big) > LETTERS_AN_EDIT else None


def count_edits(one: str, other: str) -> int:
    """Letters to add, drop, change, or swap with the next one (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        earlier, before, row = before, row, [i]
        for j, wanted in enumerate(other, start=1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], wanted):
                best = min(best, earlier[j - 2] + 1)
            row.append(best)
    return row[-1]


def _has_knobs(goal: str) -> bool:
    return any(goal in knob.commands for knob in KNOBS.values())


def _explain_unknown(name: str) -> str:
    nearest = find_nearest(name)
    cure = f"write {nearest.name}= ({nearest.meaning})" if nearest else "`make help-dev` lists them"
    return f"a value's name must be that of a knob: got {name}; do: {cure}"


def _explain_unread(knob: Knob, goals: Sequence[str]) -> str:
    readers, given = f"make {', '.join(knob.commands)}", f"make {' '.join(goals)}"
    return f"{knob.name} is read by {readers}: got {given}; do: leave it out, or give it to one of these"
