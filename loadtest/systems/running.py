"""Servers that run already: the kit's own in a run directory, with plan and verify, or any by its URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from config.errors import ConfigError
from config.plan import read_plan
from loadtest.errors import LoadTestError
from loadtest.systems.fleet import Member, Site
from loadtest.systems.system import System, make_kit_system
from server.call import make_client
from server.errors import ServerError
from server.rundir import RunDir


def find_system(*, run_dir: str, url: str, name: str = "") -> System:
    """By URL when one is given, else the server of the run directory, which must be up."""
    if url:
        how = "any server, by its URL: it cannot be verified"
        return System(name=name or url, models=(), url=url.rstrip("/"), how=how)
    run = RunDir.at(run_dir)
    try:
        plan = read_plan(run.plan)
        make_client(plan, run).describe(next(iter(plan.models)))
    except (ConfigError, ServerError) as problem:
        raise LoadTestError(
            f"no server answers from {run.path}: {problem}; run `make serve` first"
        ) from problem
    return make_kit_system(name or run_dir, run, plan, how="the kit's server, as it runs")


def running(system: System) -> Member:
    """As a member: nothing is started or stopped, and at the end it goes on."""

    @contextlib.contextmanager
    def go_on(_: Site) -> Iterator[System]:
        try:
            yield system
        finally:
            system.resume()

    return Member(name=system.name, open=go_on)
