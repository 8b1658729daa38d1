"""`make tune`: model after model, and then one tuned.json for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from config.tuned import TUNED_FILE, write_tuned
from loadtest.errors import LoadTestError
from loadtest.experiments.tune import mix
from loadtest.experiments.tune.experiment import KIND
from loadtest.experiments.tune.grid import KIND as GRID_KIND
from loadtest.experiments.tune.keep import keep_tuned
from loadtest.experiments.tune.mix_prepare import check_mix, prepare_mix
from loadtest.experiments.tune.prepare import Wish, plan_all, prepare
from loadtest.results.kept import LATEST, Kept, find_result, list_results, read_kept
from loadtest.systems.fleet import Site
from loadtest.trials.runner import run_experiment


def run_models(
    wish: Wish, site: Site, *, results: Path, resume: str
) -> tuple[list[Kept], Callable[[], Path], list[str]]:
    """What was kept of each model, what writes the file for these, for when all of it can be told, and why
    others could not be tuned; LoadTestError where none could."""
    plan = plan_all(wish, site)
    folders = {model: find_resumed(resume, model, wish, results) for model in wish.models}
    kepts: dict[str, Kept] = {}
    problems: list[str] = []
    for model, folder in folders.items():
        try:
            experiment = prepare(wish, model, plan, site)
            kepts[model] = run_experiment(experiment, site, results=results, resume=folder)
        except LoadTestError as problem:
            problems.append(f"{model}: {problem}")
            if len(wish.models) > 1:  # told at once: the others take a quarter of an hour each
                site.say(f"{model}: could not be tuned: {problem}")
    if not kepts:
        raise LoadTestError("\n".join(problems))
    # In the order of every plan's inputs: in another one the file would be stale.
    inputs = replace(plan.inputs, models=tuple(name for name in plan.inputs.models if name in kepts))
    found = [*kepts.values()]
    return found, lambda: keep_tuned(found, inputs, wish.run_dir), problems


def run_mix(
    wish: Wish, text: str, site: Site, *, results: Path, resume: str
) -> tuple[Kept, Callable[[], Path]]:
    """What was kept of all models together, and what writes the file."""
    shares, plan = check_mix(wish, text), plan_all(wish, site)
    folder = find_result(resume, results, name=mix.KIND) if resume else None
    experiment = prepare_mix(wish, shares, plan, site)
    kept = run_experiment(experiment, site, results=results, resume=folder)

    def keep() -> Path:
        file = wish.run_dir / TUNED_FILE
        write_tuned(file, mix.make_tuned(kept, plan.inputs))
        return file

    return kept, keep


def run_grid(wish: Wish, site: Site, *, results: Path, resume: str, plans: Sequence[str] = ()) -> Kept:
    """Every plan of one model, or these alone, against what its latest race of the same limit found."""
    if len(wish.models) != 1:
        raise LoadTestError(f"GRID is of one model: got {len(wish.models)}; give one of MODELS")
    (model,) = wish.models
    race = read_kept(find_result(LATEST, results, name=f"{KIND}-{model}"))
    limit = {"percentile": wish.limit.percentile, "ms": 1000 * wish.limit.seconds}
    if race.asked["limit"] != limit:
        raise LoadTestError(f"GRID needs a latest race with the limit {limit}: got {race.asked['limit']}")
    folder = find_result(resume, results, name=f"{GRID_KIND}-{model}") if resume else None
    experiment = prepare(replace(wish, grid=race, plans=tuple(plans)), model, plan_all(wish, site), site)
    return run_experiment(experiment, site, results=results, resume=folder)


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
