"""`python -m loadtest tune`: model after model, or all of a mix at once, and then one tuned.json."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import click

from config.errors import ConfigError
from config.planning import read_facts
from config.settings import Settings
from loadtest.bench import open_bench
from loadtest.command import (
    ABOVE_0,
    PORT,
    RESULTS_OPTION,
    STORE,
    call,
    finish,
    open_site,
    option,
    options,
    say,
)
from loadtest.errors import LoadTestError
from loadtest.results import LATEST, find_result, list_results
from loadtest.tune import prepare
from loadtest.tune.experiment import KIND, Race, keep_tuned, measure_race, show_race
from server.errors import ServerError


@click.command(KIND)
@option("BUDGET_MINUTES", type=ABOVE_0, default=prepare.DEFAULT_MINUTES)
@options("PAYLOADS", "RESUME", "MIX")
@STORE
@PORT
@RESULTS_OPTION
@click.argument("words", metavar="-- PLAN_OPTION... [-- BUILD_OPTION...]", nargs=-1, type=click.UNPROCESSED)
def run_tune(words: Sequence[str], budget_minutes: float, payloads: str, mix: str, **given: Any) -> int:
    """The plan that serves the most within a latency limit, measured against the default.

    Options are those of `python -m config` for every plan, and of `python -m models build` for the archives.
    """
    place = words.index("--") if "--" in words else len(words)
    plan_options, build_options = words[:place], words[place + 1 :]
    wish = prepare.read_wish(plan_options, minutes=budget_minutes, payloads=payloads, mix=mix)
    resume, results = given["resume"], given["results"]
    if resume not in ("", LATEST) and len(wish.tunings) > 1:
        raise LoadTestError(f"RESUME of several models must be {LATEST}: got {resume}; or give one of MODELS")
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
        call("models", "build", *(build_options or ["--models", " ".join(wish.models)]))
        call("server", "check-plan", *plan_options)
        with open_site(given["store"], given["first_port"]) as site:
            stored = [*wish.arguments, "--model-store", str(site.store)]
            prepare.time_batches(" ".join(wish.models), stored, wish, site)
            plan = prepare.make_plan(wish, site, wish.models)
            for models, folder in folders.items():
                with going_on(models) as name:
                    asked, servers = prepare.prepare(wish, models, plan, site, folder)
                    with open_bench(KIND, name, asked, site, results=results, resume=folder) as bench:
                        race = measure_race(bench, servers)
                    races.append((race, bench.kept.folder.name))
                    codes.append(finish(show_race(race, bench.kept.host), bench.kept))
    if races and not any(codes):
        file = keep_tuned(races, read_facts(Settings(**plan.settings)), wish.run_dir)
        say(f"written: {file}; `make serve` goes by it until it is removed")
    if problems:
        raise LoadTestError("\n".join(problems))
    return max(codes)
