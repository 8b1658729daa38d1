"""Answers a mistyped value at once, before minutes are spent on an installation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from config.__main__ import build_parser, parse_inputs
from config.errors import ConfigError
from config.folders import check_run_folder
from config.rules.requests import check_inputs, check_machine
from config.topology import read_topology
from setup.errors import SetupError

SWITCH = ("0", "1")


def check_switch(variable: str, asked: str) -> None:
    if asked and asked not in SWITCH:
        raise SetupError(f"{variable} must be one of {', '.join(SWITCH)}: got {asked}")


def check_place(checkout: Path) -> None:
    """LD_PRELOAD is split at blanks and colons (ld.so(8)), and the JVM's arguments at blanks."""
    splitting = sorted({character for character in str(checkout) if character.isspace() or character == ":"})
    if splitting:
        raise SetupError(
            "the checkout's path must be without blanks and colons, at which the loader splits the list of "
            f"preloaded libraries: got {checkout}; move or clone it elsewhere"
        )


def check_plan(arguments: Sequence[str], stack: str = "") -> None:
    """What `config` can judge from the values and the machine alone.

    Its other answers need the models' definitions (YAML) or installed libraries, so they come after the
    installation.
    """
    options = build_parser().parse_args(["--stack", stack, *arguments])
    try:
        asked = parse_inputs(options, ())
        check_inputs(asked)
        check_machine(read_topology(options.topology or "/"), asked)
        check_run_folder(Path(options.run_dir))
    except ConfigError as problem:
        raise SetupError(str(problem)) from problem
