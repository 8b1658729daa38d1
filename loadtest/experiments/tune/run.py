"""`make tune`: model after model, or all of a mix at once, and then one tuned.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.plan import Inputs
from config.topology import read_topology
from config.tuned import TUNED_FILE, Tuned, describe_present, write_tuned
from loadtest.errors import LoadTestError
from loadtest.experiments.tune.experiment import KIND
from loadtest.experiments.tune.outcome import choose, describe_gain, find_outcome
from loadtest.experiments.tune.prepare import Wish, plan_all, prepare
from loadtest.results.kept import LATEST, Kept, find_result, list_results
from loadtest.systems.fleet import Site
from loadtest.trials.runner import run_experiment


def run_tune(
    wish: Wish, site: Site, *, results: Path, resume: str
) -> tuple[list[Kept], Callable[[], Path], list[str]]:
    """What was kept of each, what writes the file for these, for when all of it can be told, and why
    others could not be tuned; LoadTestError where none could."""
    plan = plan_all(wish, site)
    tunings = [wish.models] if wish.shares else [(name,) for name in wish.models]
    folders = {models: find_resumed(resume, models, results, alone=len(tunings) == 1) for models in tunings}
    kepts: dict[tuple[str, ...], Kept] = {}
    problems: list[str] = []
    for models, folder in folders.items():
        try:
            experiment = prepare(wish, models, plan, site)
            kepts[models] = run_experiment(experiment, site, results=results, resume=folder)
        except LoadTestError as problem:
            problems.append(f"{' '.join(models)}: {problem}")
            if len(tunings) > 1:  # told at once: the others take a quarter of an hour each
                site.say(f"{models[0]}: could not be tuned: {problem}")
    if not kepts:
        raise LoadTestError("\n".join(problems))
    tuned = {name for models in kepts for name in models}
    # In the order of every plan's inputs: in another one the file would be stale.
    inputs = replace(plan.inputs, models=tuple(name for name in plan.inputs.models if name in tuned))
    found = [*kepts.values()]
    return found, lambda: keep_tuned(found, inputs, wish.run_dir), problems


def find_resumed(resume: str, models: Sequence[str], results: Path, *, alone: bool) -> Path | None:
    """`latest` is each one's own, if it has one; a folder is one's."""
    name = "-".join((KIND, *models))
    if resume not in ("", LATEST) and not alone:
        raise LoadTestError(f"RESUME of several models must be {LATEST}: got {resume}; or give one of MODELS")
    if not resume or (not alone and not list_results(results, name=name)):
        return None
    return find_result(resume, results, name=name)


def keep_tuned(kepts: Sequence[Kept], inputs: Inputs, run_dir: Path) -> Path:
    """One file for all models that were tuned; `inputs` are what was planned for all of them."""
    chosen: dict[str, Any] = {}
    evidence: dict[str, str] = {}
    for kept in kepts:
        outcome, models = find_outcome(kept), kept.asked["models"]
        numbers = {**choose(outcome, alone=len(kepts) == 1)}
        if numbers:
            numbers.setdefault("variant", dict(kept.asked["variants"]))
        for name, value in numbers.items():
            chosen[name] = {**chosen.get(name, {}), **value} if isinstance(value, dict) else value
        told = describe_gain(outcome, f"results/{kept.folder.name}")
        told = f"{outcome.what}: {told}" if len(models) > 1 else told
        evidence |= dict.fromkeys(models, told)
    made_for, limit = describe_present(read_topology(), inputs), dict(kepts[0].asked["limit"])
    write_tuned(run_dir / TUNED_FILE, Tuned(made_for=made_for, limit=limit, chosen=chosen, evidence=evidence))
    return run_dir / TUNED_FILE
