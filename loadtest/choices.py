"""What a command line asks for, as systems, scenarios and generators that fit each other."""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from handlers.engines.sets import find_set, name_store
from loadtest.errors import LoadTestError
from loadtest.scenarios.scenario import Overrides, Scenario, apply_overrides, list_scenarios, read_scenario
from loadtest.systems.fleet import Site
from loadtest.systems.running import find_system
from loadtest.systems.system import ROOT, System

FIRST_PORT = 19080
"""Of the servers that an experiment starts; each has ten."""
CHANGES = ("duration", "repeats", "users", "rate", "driver", "payloads")


def say(line: str) -> None:
    """At once, whatever standard output is."""
    print(line, flush=True)


@contextlib.contextmanager
def open_site(options: argparse.Namespace) -> Iterator[Site]:
    """A scratch folder that is gone when the command ends."""
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        store = getattr(options, "store", "")
        port = getattr(options, "first_port", "") or getattr(options, "port", "")
        first = parse_number("--first-port", port or str(FIRST_PORT))
        if first != int(first):
            raise LoadTestError(f"--first-port must be a whole number: got {port}")
        yield Site(
            store=Path(store or ROOT / name_store(find_set())).resolve(),
            folder=Path(name),
            first_port=int(first),
            say=say,
        )


def choose_system(text: str, options: argparse.Namespace, name: str = "") -> System:
    """Of a URL, or of a run directory; `name` goes before its own."""
    url = text if text.startswith(("http://", "https://")) else "" if text else options.url
    folder = text or options.run_dir or "run"
    # A result may go to others: its figures name the folder, not where it lies.
    return find_system(run_dir=folder, url=url, name=url or f"{name}{Path(folder).resolve().name}")


def choose_scenarios(
    options: argparse.Namespace, system: System, loop: str = "", tell: Callable[[str], None] = say
) -> list[Scenario]:
    """Those that are named; else all whose model is served and whose loop fits."""
    asked = Overrides(**{key: getattr(options, key) for key in CHANGES})
    named = options.scenario.replace(",", " ").split()
    chosen = [read_scenario(name) for name in named or list_scenarios()]
    if not named:
        chosen = [one for one in chosen if _fits(one, asked, system, tell)]
    chosen = [one for one in chosen if loop in ("", one.arrival.loop)]
    if not chosen:
        wanted = f" with a {loop} loop" if loop else ""
        raise LoadTestError(f"no scenario{wanted} fits; SCENARIO= names one of {', '.join(list_scenarios())}")
    return [apply_overrides(one, asked) for one in chosen]


def _fits(scenario: Scenario, asked: Overrides, system: System, tell: Callable[[str], None]) -> bool:
    if system.models and scenario.model not in system.models:
        tell(f"{scenario.name}: left out, {scenario.model} is not served")
        return False
    if not asked.fit(scenario):
        tell(f"{scenario.name}: left out, USERS, DRIVER=ab and RATE are for the other kind of loop")
        return False
    return True


def need(name: str, value: str) -> str:
    """LoadTestError when a value that a command cannot do without is missing."""
    if not value:
        raise LoadTestError(f"{name} must be given: got nothing; see `make help`")
    return value


def parse_number(name: str, text: str) -> float:
    """Above 0; make's unset variables are empty."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise LoadTestError(f"{name} must be a number above 0: got {text or 'nothing'}")
    return value
