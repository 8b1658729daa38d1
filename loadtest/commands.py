"""`python -m loadtest COMMAND`: what the Makefile's targets of load tests and experiments call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.errors import ConfigError
from config.knobs.table import add_knobs
from config.terminal import print_in_any_locale
from loadtest import actions
from loadtest.errors import LoadTestError
from loadtest.results.kept import RESULTS
from server.errors import ServerError
from server.start import Interrupted, catch_signals


@dataclass(frozen=True)
class Command:
    """One of them; its options besides those that all have."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    knobs: Sequence[str] = ()
    """Of config/knobs/table.py, which knows their options and their help."""
    options: Sequence[tuple[str, str]] = ()
    """(option, help) of what make does not offer; empty means "not given" here too."""
    names: str = ""
    """What its positional arguments are, if it takes any."""
    checked: bool = False
    """Takes --check: only judge the values, before archives are built for minutes."""


def main(arguments: list[str] | None = None) -> int:
    """0 good; 1 invalid, a limit missed, or a failure; 2 wrong usage."""
    print_in_any_locale()
    options = make_parser().parse_args(arguments)
    try:
        with catch_signals():  # so that a generator that is under way is ended with us
            return int(options.command.run(options))
    except (LoadTestError, ServerError, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except Interrupted as signalled:
        print(f"\nstopped by {signalled}; finished blocks are kept", file=sys.stderr)
        return signalled.exit_code


def make_parser() -> argparse.ArgumentParser:
    """One subcommand each."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for one in COMMANDS:
        command = commands.add_parser(one.name, help=one.help, description=one.help)
        command.set_defaults(command=one)
        add_knobs(command, one.knobs)
        for option, text in one.options:
            command.add_argument(option, default="", help=text)
        command.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
        if one.names:
            command.add_argument("names", nargs="*", metavar=one.names)
        if one.checked:
            command.add_argument("--check", action="store_true", help="look at these values and do nothing")
    return parser


SYSTEM = ("RUN_DIR", "URL", "PROCESSES")
SCENARIO = ("SCENARIO", "DURATION", "USERS", "RATE", "DRIVER", "PAYLOADS")
BOUND = ("A", "B", "BOUND")
TIMING = ("DURATION", "RESUME")
STORE = (("--store", "folder with the archives"), ("--first-port", "of the servers that are started"))
REPEATS = (("--repeats", "of each level"),)
WARM_UP = ("--warm-up", "seconds of each system, before its first window")
ONLY = ("--only", "names of rungs, for a trial")
COMMANDS = (
    Command("run", "scenarios against a running server", actions.run_measure, (*SYSTEM, *SCENARIO), REPEATS),
    Command("ui", "one scenario with Locust's own web page", actions.run_ui, (*SYSTEM, *SCENARIO), REPEATS),
    Command(
        "peak", "search the highest open-loop rate whose p99 keeps a limit", actions.run_peak,
        (*SYSTEM, *SCENARIO, "SLO_P99_MS"), REPEATS,
    ),
    Command(
        "gate", "two running servers in turns; exit code 1 on a regression", actions.run_gate,
        (*SYSTEM, *SCENARIO, *BOUND), REPEATS,
    ),
    Command("compare", "two results side by side; exit code 1 on a regression", actions.run_compare, BOUND),
    Command(
        "ladder", "what each setting, or engine in each precision, is worth", actions.run_ladder,
        ("MODELS", "RUNGS", *TIMING), (*STORE, WARM_UP, ONLY), checked=True,
    ),
    Command(
        "targets", "what the kit gains over its baselines", actions.run_targets,
        TIMING, (*STORE, WARM_UP), checked=True,
    ),
    Command(
        "tune", "the plan that serves the most within a latency limit, measured against the default",
        actions.run_tune, ("BUDGET_MINUTES", "PAYLOADS", "RESUME", "MIX"), STORE, "PLAN_OPTION", checked=True,
    ),
    Command(
        "profile", "two systems side by side under load: threads, memory, operators, oneDNN's primitives",
        actions.run_profile, ("MODELS", "AGAINST", "DURATION", "PRECISION"), STORE, checked=True,
    ),
    Command(
        "soak", "both models behind the door near their peak; exit code 1 when memory or latency grows",
        actions.run_soak, ("DURATION", "PRECISION"), STORE, checked=True,
    ),
    Command("report", "tables and pages of kept results again", actions.run_report, names="RESULT"),
    Command("worker", "generate load for PROCESSES=remote:N of another machine", actions.run_worker),
)  # fmt: skip
