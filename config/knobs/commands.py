"""What make and compose ask before they begin: are the names right; and the lists that people read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from config.knobs.names import check_environment, check_given, check_values, is_read, list_read
from config.knobs.pages import MOST_USED, render_help, render_markdown
from config.knobs.table import KNOBS
from config.terminal import print_in_any_locale
from handlers.engines.sets import choose_set


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
