"""What make and compose ask before they begin, and the lists that people read: help and docs/knobs.md."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence

from config.knobs.table import EVERY, GROUPS, KNOBS, SWITCH, Knob
from config.terminal import print_in_any_locale
from handlers.backends.catalogue import choose_set

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
    own = {goal for knob in KNOBS.values() for goal in knob.commands}
    return any(KNOBS[name].is_read_by(goal) or goal not in own for goal in goals)


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


def _explain_unknown(name: str) -> str:
    nearest = find_nearest(name)
    cure = f"write {nearest.name}= ({nearest.meaning})" if nearest else "`make help-dev` lists them"
    return f"a value's name must be that of a knob: got {name}; do: {cure}"


def _explain_unread(knob: Knob, goals: Sequence[str]) -> str:
    readers, given = f"make {', '.join(knob.commands)}", f"make {' '.join(goals)}"
    return f"{knob.name} is read by {readers}: got {given}; do: leave it out, or give it to one of these"


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
    values = f" One of {', '.join(f'`{one}`' for one in knob.choices)}." if knob.choices else ""
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


def main(arguments: Sequence[str]) -> int:
    """`help [all]`, `markdown`, `compose`, or `check GOALS LEVEL NAME=VALUE…`, the goals in one word."""
    print_in_any_locale()
    if arguments == ["help"]:
        print(render_help(MOST_USED))
    elif arguments == ["help", "all"]:
        print(render_help())
    elif arguments == ["markdown"]:
        print(render_markdown(), end="")
    elif arguments == ["compose"]:
        check_compose()
    elif len(arguments) > 2 and arguments[0] == "check":
        given = dict(one.split("=", 1) for one in arguments[3:])
        print(check(arguments[1].split(), given, of_parent=arguments[2] != "0"))
    else:
        usage = "usage: config.knobs help [all] | markdown | compose | check GOALS LEVEL NAME=VALUE…"
        raise SystemExit(f"{usage}: got {arguments}")
    return 0


def check(goals: Sequence[str], given: Mapping[str, str], *, of_parent: bool) -> str:
    """BACKEND's package set, and the names make keeps from programs' environment; or `refused:` and why.

    Below another make the command line holds that one's values too, which are no business of ours.
    """
    wrong = [] if of_parent else check_given(given, goals)
    came = {*os.environ, *given} if of_parent else {*os.environ} - {*given}
    wrong += check_environment(sorted(came - {*KNOBS}), list_read(goals))
    values = {**os.environ, **given}
    wrong += check_values({name: values[name] for name in KNOBS if name in values and is_read(name, goals)})
    try:
        package_set = choose_set(values.get("BACKEND", "") if is_read("BACKEND", goals) else "")
    except ValueError as problem:
        wrong.append(str(problem))
    if wrong:
        return f"refused: {'; '.join(wrong)}"
    return " ".join((package_set, *KNOBS))


def check_compose() -> None:
    """Refuse what Compose cannot see: it hands over the names of its file alone."""
    taken = [knob for knob in KNOBS.values() if knob.compose is not None]
    wrong = check_environment(sorted({*os.environ} - {*KNOBS}), taken)
    if wrong:
        raise SystemExit(f"refused: {'; '.join(wrong)}")
