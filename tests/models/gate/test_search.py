"""INT8's recipes: their order, the bound of time, what is told of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from handlers.backends.ipex_int8 import recipes
from handlers.backends.ipex_int8.recipes import Plan, list_plans
from handlers.shared.errors import LoadError
from models.gate.search import (
    FURTHER_SECONDS,
    Trial,
    find_best,
    find_passed,
    search_recipes,
)
from tests.models.gate.test_verdict import GOOD

PLANS = [Plan(name=name, observer="histogram") for name in ("a", "b", "c", "d")]
LATE = f"not tried: {FURTHER_SECONDS:g} s for further recipes are used up"


class Bench:
    """Trials that take what they are told to by a clock that only they move."""

    def __init__(self, seconds: float, agreement: dict[str, float], wrong: dict | None = None):
        self.now = 0.0
        self.started: list[str] = []
        self._seconds = seconds
        self._agreement = agreement
        self._wrong = wrong or {}

    def attempt(self, plan: Plan, earlier: Sequence[Trial], deadline: float) -> Trial:
        self.started.append(plan.name)
        self.now += self._seconds
        if plan.name in self._wrong:
            raise self._wrong[plan.name]
        share = self._agreement.get(plan.name, 0.5)
        figures = dataclasses.replace(GOOD, agreement_decided=share, recipe=plan.name)
        reason = None if share >= 0.99 else f"agreement is {share}"
        return Trial(name=plan.name, reason=reason, figures=figures, time_ratio=1.5 if earlier else 1.0)

    def search(self) -> list[Trial]:
        return search_recipes(PLANS, self.attempt, clock=lambda: self.now)


def names(trials: Sequence[Trial], keep: Callable[[Trial], bool]) -> list[str]:
    return [trial.name for trial in trials if keep(trial)]


def test_the_first_recipe_that_passes_ends_the_search():
    bench = Bench(1, {"c": 1.0, "d": 1.0})
    trials = bench.search()
    assert bench.started == ["a", "b", "c"]
    assert find_passed(trials) is find_best(trials) is trials[2]


def test_where_none_passes_the_nearest_is_kept():
    trials = Bench(1, {"b": 0.9, "c": 0.8}).search()
    assert find_passed(trials) is None
    assert find_best(trials).name == "b"


@pytest.mark.parametrize(
    ("seconds", "started"),
    [
        (FURTHER_SECONDS / 3, ["a", "b", "c", "d"]),
        (FURTHER_SECONDS / 3 + 1, ["a", "b", "c"]),
        (FURTHER_SECONDS, ["a", "b"]),
        # It would end late, by what the first took: not begun.
        (FURTHER_SECONDS + 1, ["a"]),
    ],
)
def test_what_would_end_late_is_not_begun_and_is_told(seconds, started):
    bench = Bench(seconds, {})
    trials = bench.search()
    assert bench.started == started
    assert names(trials, lambda trial: trial.reason == LATE) == ["a", "b", "c", "d"][len(started) :]
    assert bench.now <= seconds + FURTHER_SECONDS


def test_a_recipe_that_cannot_be_built_does_not_end_the_search():
    trials = Bench(1, {"d": 1.0}, {"b": LoadError("planted", cure="none"), "c": RuntimeError("odd")}).search()
    assert [trial.reason for trial in trials[1:]] == [
        "cannot be built: planted",
        "cannot be built: odd",
        None,
    ]


def test_a_cpu_with_avx2_alone_has_the_recipes_of_seven_bits_and_none_with_bf16(monkeypatch):
    monkeypatch.setattr(recipes, "has_flags", lambda flags: not flags)
    for convolutional in (True, False):
        plans = list_plans(convolutional=convolutional)
        assert [plan.name for plan in plans] == ["histogram", "min-max", "percentile"]


def test_labels_rank_before_agreement():
    one = dataclasses.replace(
        GOOD, labelled_accuracy_fp32=0.9, labelled_guess=0.5, labelled_loss_points=2.0, agreement_decided=0.9
    )
    two = dataclasses.replace(one, labelled_loss_points=3.0, agreement_decided=0.95)
    trials = [Trial(name=str(at), reason="failed", figures=figures) for at, figures in enumerate((two, one))]
    assert find_best(trials).name == "1"
