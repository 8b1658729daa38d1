"""Refuses names that are no knob, or none of what is asked for, and says which one is meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from config.knobs.knob import Knob
from config.knobs.table import KNOBS

SHORTEST = 6
"""Letters of the shortest knob that an environment's names are compared with. Near to shorter ones are
ordinary names: USER (USERS), CPU (CPUS), PORTS (PORT), DATE (RATE), MODE (MODEL); so are names with something
before or behind a knob's: NWORKERS, PROFILER, OPENMPI, PYTHON3. Without these, of 669 variables that Python,
torch, transformers and what they need look at, none is near to a knob; of 20,934 names in the shell
scripts of a Debian, in capitals, only CATFILE (CA_FILE). Two edits would take in MODULES (MODELS)."""
LETTERS_AN_EDIT = 3
"""A name that was given to make on purpose is explained more freely: an edit for each three letters."""
OF_MAKE = frozenset({"SHELL", "MAKE", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKEFILES"})
"""GNU make's own variables, which a command line may set."""


def check_given(names: Iterable[str], goals: Sequence[str]) -> list[str]:
    """What is wrong with the names on make's command line: each must be a knob that a goal reads."""
    unknown = [_explain_unknown(name) for name in names if name not in KNOBS and name not in OF_MAKE]
    return unknown + [
        _explain_unread(KNOBS[name], goals)
        for name in names
        if name in KNOBS and not _read(KNOBS[name], goals)
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


def list_read(goals: Sequence[str]) -> list[Knob]:
    """The knobs that are of these goals alone: no slip in PYTHON shall keep a server from being stopped."""
    return [knob for knob in KNOBS.values() if {*goals} & {*knob.commands}]


def is_misspelt(name: str, knob: str) -> bool:
    """Whether a name that came by itself is this knob's in small letters, or one edit within it."""
    if len(knob) < SHORTEST:
        return False
    if name.upper() == knob:
        return name != knob
    return name[:1] == knob[0] and not name.startswith(knob) and count_edits(name, knob) == 1


def find_nearest(name: str) -> Knob | None:
    """The knob of make that is meant by a name: the one with the fewest edits, or one that begins so."""
    big = name.upper()
    of_make = [knob for knob in KNOBS.values() if knob.commands]
    edits, nearest = min(((count_edits(big, knob.name), knob) for knob in of_make), key=lambda pair: pair[0])
    if edits <= len(big) // LETTERS_AN_EDIT:
        return nearest
    begun = [knob for knob in of_make if knob.name.startswith(big)]
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


def _read(knob: Knob, goals: Sequence[str]) -> bool:
    """A goal that has no knob of its own (help, a step such as `inputs`) may be given any."""
    return any(knob.is_read_by(goal) or not _has_knobs(goal) for goal in goals)


def _has_knobs(goal: str) -> bool:
    return any(goal in knob.commands for knob in KNOBS.values())


def _explain_unknown(name: str) -> str:
    nearest = find_nearest(name)
    cure = f"write {nearest.name}= ({nearest.meaning})" if nearest else "`make help` lists them"
    return f"a value's name must be that of a knob: got {name}; do: {cure}"


def _explain_unread(knob: Knob, goals: Sequence[str]) -> str:
    place = f"make {', '.join(knob.commands)}" if knob.commands else "the container or compose"
    given = f"make {' '.join(goals)}"
    return f"{knob.name} is read by {place}: got {given}; do: leave it out, or give it to one of these"
