"""Which command reads which settings, and what is made of that: help, and the check of make."""

from __future__ import annotations

import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from config.errors import ConfigError
from config.settings import FIELDS, PUBLIC, Settings, about, read_settings, show_bounds
from config.sources import explain_unknown, join_by_model
from config.terminal import print_in_any_locale

SETTING = re.compile(r"[A-Z][A-Z0-9_]*=")
OF_MAKE = frozenset({"SHELL", "MAKE", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKEFILES"})
"""GNU make's own variables, which a command line may set."""
GROUPS = {
    "serving": "Serving", "requests": "Requests", "libraries": "Libraries of the workers",
    "network": "Network", "building": "Building archives", "running": "Running", "load": "Load tests",
    "args": "Options",
}  # fmt: skip
"""Group → title, in the order of help. A setting without a group is of programs alone."""
_PLAN = "serving requests libraries network RUN_DIR LOG"
_BUILD = "MODELS PRECISION BACKEND WEIGHTS CALIBRATION EVAL ALLOW_PICKLE TORCH_INDEX"
_SERVE = f"{_PLAN} {_BUILD} VERBOSE"


@dataclass(frozen=True)
class Command:
    """A target of the Makefile."""

    reads: str = ""
    """Groups and names of settings; each reads PYTHON, too."""
    program: str = ""
    """Its module and words, run in the environment once that is complete."""
    extra: str = ""
    """What is installed beside what serving needs: loadtest, dev or audit."""
    builds: bool = False
    """It may build archives: WEIGHTS and the like are checked before anything is installed."""


def _load(word: str, reads: str, *, builds: bool = False) -> Command:
    return Command(f"{reads} ARGS TORCH_INDEX", f"loadtest {word}", "loadtest", builds)


_LOOK = Command("RUN_DIR")
_DEVELOP = Command("TORCH_INDEX", extra="dev")
COMMANDS: dict[str, Command] = {
    **dict.fromkeys(("help", "help-dev", "doctor"), Command()),
    "setup": Command("BACKEND TORCH_INDEX"),
    "model": Command("FROM ARGS TORCH_INDEX", "models new"),
    "models": Command(f"{_BUILD} ARGS", "models build", builds=True),
    "plan": Command(f"{_PLAN} TOPOLOGY", "server plan"),
    "serve": Command(f"{_SERVE} FOREGROUND", "server serve", builds=True),
    "reload": Command(_SERVE, "server reload", builds=True),
    **dict.fromkeys(("status", "stop", "clean", "distclean"), _LOOK),
    "verify": Command("RUN_DIR FORMAT VERBOSE"),
    "tune": _load("tune", f"{_SERVE} PAYLOADS", builds=True),
    "soak": _load("soak", f"{_SERVE} DURATION", builds=True),
    "loadtest": _load("run", f"{_SERVE} load", builds=True),
    "loadtest-ui": _load("ui", f"{_SERVE} load", builds=True),
    "loadtest-slo": _load("slo", f"{_SERVE} load", builds=True),
    "loadtest-gate": _load("gate", "RUN_DIR load"),
    "ablation": _load("ablation", "MODELS BACKEND DURATION"),
    "benchmark": _load("benchmark", "MODELS BACKEND SLO_P99_MS"),
    "profile": _load("profile", "MODELS PRECISION BACKEND DURATION"),
    "report": _load("report", ""),
    "compare": _load("compare", ""),
    "image": Command("MODELS BACKEND WEIGHTS ARGS TORCH_INDEX", "docker"),
    "audit": Command("BACKEND TORCH_INDEX", extra="audit"),
    "load-tools": Command("TORCH_INDEX", extra="loadtest"),
    "benchmark-tools": Command("TORCH_INDEX", extra="litserve"),
    **dict.fromkeys(("dev", "lint", "docs", "format", "lock", "test", "test-unit", "test-e2e"), _DEVELOP),
    **dict.fromkeys(
        ("test-reliability", "test-current", "test-current-quick", "test-fleet", "image-test"), _DEVELOP
    ),
}


def list_read(command: str) -> tuple[str, ...]:
    """Names of the settings that a target of the Makefile reads."""
    words = {*COMMANDS[command].reads.split(), "PYTHON"}
    return tuple(name for name in PUBLIC if {name, about(FIELDS[name])["group"]} & words)


def render_settings(settings: Settings) -> dict[str, str]:
    """NAME → VALUE of all that is not the default, as the command line takes it."""
    texts = {}
    for name, field in FIELDS.items():
        if (value := getattr(settings, field)) != Settings.model_fields[field].default:
            value = join_by_model(value) if isinstance(value, dict) else value
            value = " ".join(value) if isinstance(value, tuple) else value
            texts[name] = str(int(value) if isinstance(value, bool) else value)
    return texts


def take_own(arguments: Sequence[str], command: str) -> list[str]:
    """The settings that a target of the Makefile reads, of those on make's command line.

    make begins them with `--goals=…`, all that it was told to make: each setting must be read by one of them.
    Below another make it is `--below`: that one's values, which come too, are no business of ours.
    """
    if not arguments or not arguments[0].startswith("--"):
        return [*arguments]
    below, pairs = arguments[0] == "--below", [word.partition("=")[::2] for word in arguments[1:]]
    goals = arguments[0].removeprefix("--goals=").split() or ["help"]
    wrong = []
    for name in (name for name, _ in pairs if not below and name not in OF_MAKE):
        readers = [goal for goal in COMMANDS if name in list_read(goal)]
        if name not in PUBLIC:
            wrong.append(explain_unknown(name, PUBLIC))
        elif not {*goals} & {*readers}:
            do = f"{name} is read by make {', '.join(readers)}"
            wrong.append(f"{do}: got make {' '.join(goals)}; do: leave it out, or give it to one of these")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return [f"{name}={value}" for name, value in pairs if name in list_read(command)]


def read_program(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """What a program was given: settings, and the options that stand beside them and in ARGS."""
    given = [word for word in words if SETTING.match(word)]
    settings = read_settings(given)
    try:
        return settings, [*(word for word in words if word not in given), *shlex.split(settings.args)]
    except ValueError as problem:
        raise ConfigError(
            f"ARGS must be words as a shell reads them: got {settings.args}: {problem}"
        ) from problem


WIDTH = 110
NAME_WIDTH = 18
MOST_USED = tuple(GROUPS)[:2]


def describe(group: str) -> Iterator[tuple[str, str, str, str]]:
    """Of each setting of a group: name, description, allowed values where there is a list or a range of them,
    and the default, in words where it has some."""
    for name, field in FIELDS.items():
        info, more = Settings.model_fields[field], about(field)
        if more["group"] == group:
            values = show_bounds(more["bounds"]) if more["bounds"] else ""
            if info.annotation is bool:
                values = "0 | 1"
            elif get_origin(info.annotation) is Literal:
                values = " | ".join(filter(None, map(str, get_args(info.annotation))))
            default = " ".join(info.default) if isinstance(info.default, tuple) else str(info.default or "")
            yield name, str(info.description), values, more["shown"] or default


def render_help(groups: Sequence[str] = tuple(GROUPS)) -> str:
    """For a terminal, by group."""
    parts = []
    for group in groups:
        lines = [f"{GROUPS[group]}:"]
        for name, text, values, default in describe(group):
            text = "; ".join(filter(None, (values, text))) + (f" ({default})" if default else "")
            start, indent = f"  {name:<{NAME_WIDTH}}", " " * (NAME_WIDTH + 2)
            lines.append(textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=indent))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def check(command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What a set-up must know of a command: its own arguments, the package set, and what it runs."""
    own = take_own(arguments, command)
    settings = read_settings(own, list_read(command))
    known = COMMANDS[command]
    foreign = command in ("serve", "reload") and any(name.endswith(".mar") for name in settings.models)
    return {
        "arguments": own, "set": settings.package_set, "torch_index": settings.torch_index,
        "extras": [extra for extra in (known.extra, "captum" if foreign else "") if extra],
        "program": known.program.split(), "builds": known.builds,
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """`help [all]`, or `check COMMAND [--goals=…] NAME=VALUE…`, which prints JSON."""
    print_in_any_locale()
    match list(arguments):
        case ["help"]:
            print(render_help(MOST_USED))
        case ["help", "all"]:
            print(render_help())
        case ["check", command, *given] if command in COMMANDS:
            try:
                print(json.dumps(check(command, given)))
            except ConfigError as problem:
                print(*(f"error: {line}" for line in str(problem).splitlines()), sep="\n", file=sys.stderr)
                return 2
        case _:
            raise SystemExit(f"usage: config.settings {main.__doc__}: got {[*arguments]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
