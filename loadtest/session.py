"""What the command line asks for, as a server, scenarios and generators that fit each other."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from loadtest.drivers.generator import parse_crew
from loadtest.endpoint import Endpoint, find_endpoint
from loadtest.errors import LoadTestError
from loadtest.kept import RESULTS
from loadtest.overrides import Overrides, apply_overrides
from loadtest.run import Session
from loadtest.scenario import Scenario, list_scenarios, read_scenario


def add_options(parser: argparse.ArgumentParser) -> None:
    """An empty value means "not given", because make passes its unset variables so."""
    parser.add_argument(
        "--scenario", default="", help=f"{', '.join(list_scenarios())}, or files; default: all"
    )
    parser.add_argument("--duration", default="", help="seconds that each repeat measures")
    parser.add_argument("--repeats", default="", help="repeats of each step")
    parser.add_argument("--users", default="", help="users of closed loops, e.g. 8 or 8,16,32")
    parser.add_argument("--rate", default="", help="requests a second of open loops, e.g. 20 or 50%%,80%%")
    parser.add_argument("--driver", default="", help="locust or ab (closed loops only)")
    parser.add_argument("--payloads", default="", help="a set's name, or a folder of your own")
    parser.add_argument(
        "--processes", default="", help="Locust's worker processes; remote:N waits for N others"
    )
    parser.add_argument("--run-dir", default="run", help="the kit's server under test (default: run)")
    parser.add_argument("--url", default="", help="any other server: http://host:port; it cannot be verified")
    parser.add_argument("--results", default="", help="where results are kept (default: loadtest/results)")


def open_session(
    options: argparse.Namespace,
    report: Callable[[str], None],
    *,
    run_dir: str | None = None,
    url: str | None = None,
) -> Session:
    """The server that is asked for, and who sends."""
    return Session(
        endpoint=find_endpoint(
            run_dir=options.run_dir if run_dir is None else run_dir, url=options.url if url is None else url
        ),
        crew=parse_crew(options.processes),
        results=find_results(options),
        report=report,
    )


def find_results(options: argparse.Namespace) -> Path:
    return Path(options.results) if options.results else RESULTS


def choose_scenarios(
    options: argparse.Namespace, endpoint: Endpoint, report: Callable[[str], None]
) -> list[Scenario]:
    """Those that are named; else all whose model is served and whose loop the other values fit."""
    keys = ("duration", "repeats", "users", "rate", "driver", "payloads")
    asked = Overrides(**{key: getattr(options, key) for key in keys})
    named = options.scenario.replace(",", " ").split()
    chosen = [read_scenario(name) for name in named or list_scenarios()]
    if not named:
        chosen = [one for one in chosen if _fits(one, asked, endpoint, report)]
    if not chosen:
        raise LoadTestError("no scenario fits; SCENARIO= names one of " + ", ".join(list_scenarios()))
    return [apply_overrides(one, asked) for one in chosen]


def _fits(scenario: Scenario, asked: Overrides, endpoint: Endpoint, report: Callable[[str], None]) -> bool:
    if endpoint.models and scenario.model not in endpoint.models:
        report(f"{scenario.name}: left out, {scenario.model} is not served")
        return False
    if not asked.fit(scenario):
        report(f"{scenario.name}: left out, USERS, DRIVER=ab and RATE are for the other kind of loop")
        return False
    return True
