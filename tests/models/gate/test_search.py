"""INT8's recipes: their order, and what is told of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace

from handlers.shared.errors import LoadError
from models.gate.search import Trial, find_best, find_passed, search_recipes
from tests.models.gate.test_verdict import GOOD

RECIPES = [SimpleNamespace(name=name) for name in ("a", "b", "c", "d")]


class Bench:
    """Trials that end as they are told to."""

    def __init__(self, agreement: dict[str, float], wrong: dict | None = None):
        self.started: list[str] = []
        self._agreement = agreement
        self._wrong = wrong or {}

    def attempt(self, recipe: SimpleNamespace, earlier: Sequence[Trial]) -> Trial:
        self.started.append(recipe.name)
        if recipe.name in self._wrong:
            raise self._wrong[recipe.name]
        share = self._agreement.get(recipe.name, 0.5)
        figures = dataclasses.replace(GOOD, agreement_decided=share, recipe=recipe.name)
        reason = None if share >= 0.99 else f"agreement is {share}"
        return Trial(name=recipe.name, reason=reason, figures=figures, time_ratio=1.5 if earlier else 1.0)

    def search(self) -> list[Trial]:
        return search_recipes(RECIPES, self.attempt)


def test_the_first_recipe_that_passes_ends_the_search():
    bench = Bench({"c": 1.0, "d": 1.0})
    trials = bench.search()
    assert bench.started == ["a", "b", "c"]
    assert find_passed(trials) is find_best(trials) is trials[2]


def test_where_none_passes_the_nearest_is_kept():
    trials = Bench({"b": 0.9, "c": 0.8}).search()
    assert find_passed(trials) is None
    assert find_best(trials).name == "b"


def test_a_recipe_that_cannot_be_built_does_not_end_the_search():
    trials = Bench({"d": 1.0}, {"b": LoadError("planted", fix="none"), "c": RuntimeError("odd")}).search()
    assert [trial.reason for trial in trials[1:]] == [
        "cannot be built: planted",
        "cannot be built: odd",
        None,
    ]


def test_labels_rank_before_agreement():
    one = dataclasses.replace(
        GOOD, labelled_accuracy_fp32=0.9, labelled_guess=0.5, labelled_loss_points=2.0, agreement_decided=0.9
    )
    two = dataclasses.replace(one, labelled_loss_points=3.0, agreement_decided=0.95)
    trials = [Trial(name=str(at), reason="failed", figures=figures) for at, figures in enumerate((two, one))]
    assert find_best(trials).name == "1"
