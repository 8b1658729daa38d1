"""`python -m loadtest tune`: model after model, or all of a mix at once, and then one tuned.json."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import click

from config.commands import list_read, render_settings
from config.errors import ConfigError
from config.plan import read_plan
from config.planning import read_facts
from config.settings import Settings
from loadtest.bench import open_bench
from loadtest.command import (
    ABOVE_0,
    PORT,
    RESULTS_OPTION,
    RESUME,
    STORE,
    call,
    finish,
    open_testbed,
    say,
)
from loadtest.errors import LoadTestError
from loadtest.results import LATEST, find_result, list_results
from loadtest.tune import prepare
from loadtest.tune.experiment import KIND, Race, keep_tuned, measure_race, show_race
from server.errors import ServerError
from server.processes import find_marked
from server.rundir import RunDir
from server.serve import list_changes


@click.command(KIND)
@click.option(
    "--budget-minutes", type=ABOVE_0, default=prepare.DEFAULT_MINUTES, show_default=True,
    help="of each model or mix, 5 or more",
)  # fmt: skip
@click.option(
    "--mix", default="",
    help="several models at once, in shares of the requests, resnet50:0.7,bert:0.3 (default: each alone)",
)  # fmt: skip
@RESUME
@STORE
@PORT
@RESULTS_OPTION
@click.pass_obj
def run_tune(settings: Settings, budget_minutes: float, mix: str, **given: Any) -> int:
    """The plan that serves the most within a latency limit, measured against the default."""
    wish = prepare.read_wish(settings, minutes=budget_minutes, mix=mix)
    resume, results = given["resume"], given["results"]
    if resume not in ("", LATEST) and len(wish.tunings) > 1:
        raise LoadTestError(
            f"--resume of several models must be {LATEST}: got {resume}; or give one of MODELS"
        )
    problems: list[str] = []
    races: list[tuple[Race, str]] = []
    codes, folders = [], {}

    @contextlib.contextmanager
    def going_on(models: Sequence[str]) -> Iterator[str]:
        try:
            yield "-".join((KIND, *models))
        except (LoadTestError, ServerError, ConfigError) as problem:
            problems.append(f"{' '.join(models)}: could not be tuned: {problem}")
            if len(wish.tunings) > 1:  # told at once: the others take a quarter of an hour each
                say(problems[-1])

    for models in wish.tunings:
        with going_on(models) as name:
            begun = resume and (len(wish.tunings) == 1 or list_results(results, name))
            folder = find_result(resume, results, name=name) if begun else None
            prepare.check_resumed(folder, prepare.ask_first(wish, models))
            folders[models] = folder
    if folders:
        build = {*list_read("models")} - {"ARGS"}
        given_now = render_settings(settings).items()
        call("models", "build", *(f"{name}={value}" for name, value in given_now if name in build))
        check_running(settings)
        with open_testbed(given["store"], given["first_port"]) as testbed:
            prepare.time_batches(wish.models, wish.arguments, wish, testbed)
            plan = prepare.make_plan(wish, testbed, wish.models)
            for models, folder in folders.items():
                with going_on(models) as name:
                    asked, servers = prepare.prepare(wish, models, plan, testbed, folder)
                    with open_bench(KIND, name, asked, testbed, results=results, resume=folder) as bench:
                        race = measure_race(bench, servers)
                    races.append((race, bench.kept.folder.name))
                    codes.append(finish(show_race(race, bench.kept.host), bench.kept))
    if races and not any(codes):
        file = keep_tuned(races, read_facts(Settings(**plan.settings)), wish.run_dir)
        say(f"written: {file}; `make serve` goes by it as long as it is there")
    if problems:
        raise LoadTestError("\n".join(problems))
    return max(codes)


def check_running(settings: Settings) -> None:
    """LoadTestError where a server of RUN_DIR has other settings: its batch profile would change."""
    run = RunDir.at(settings.run_dir)
    if not any(process.is_supervisor for process in find_marked(run.path)):
        return
    if changed := ", ".join(list_changes(read_plan(run.plan).settings, settings)):
        do = "make stop, or another RUN_DIR"
        raise LoadTestError(f"a server with other {changed} runs from {run.path}; do: {do}")
