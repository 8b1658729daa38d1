"""`make tune`: model after model, and then one tuned.json for all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.experiments.tune.experiment import KIND
from loadtest.experiments.tune.keep import keep_tuned
from loadtest.experiments.tune.prepare import Wish, plan_all, prepare
from loadtest.results.kept import LATEST, Kept, find_result, list_results
from loadtest.systems.fleet import Site
from loadtest.trials.runner import run_experiment


def run_models(
    wish: Wish, site: Site, *, results: Path, resume: str
) -> tuple[list[Kept], Callable[[], Path]]:
    """What was kept of each model, and what writes the file, for when all of it can be told."""
    plan = plan_all(wish, site)
    kepts = []
    for model in wish.models:
        folder = find_resumed(resume, model, wish, results)
        experiment = prepare(wish, model, plan, site)
        kepts.append(run_experiment(experiment, site, results=results, resume=folder))
    return kepts, lambda: keep_tuned(kepts, plan.inputs, wish.run_dir)


def find_resumed(resume: str, model: str, wish: Wish, results: Path) -> Path | None:
    """`latest` is each model's own, if it has one; a folder is one model's."""
    name = f"{KIND}-{model}"
    if not resume:
        return None
    if resume != LATEST and len(wish.models) > 1:
        raise LoadTestError(f"RESUME of several models must be {LATEST}: got {resume}; or give one of MODELS")
    if resume == LATEST and len(wish.models) > 1 and not list_results(results, name=name):
        return None
    return find_result(resume, results, name=name)
