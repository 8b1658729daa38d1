"""Each rule fires on its fault and on nothing else, with state, evidence and next step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest import validity
from loadtest.answers import AnswerCheck
from loadtest.validity import NOTES, RULES, find_doubts, find_findings, is_disturbed
from tests.loadtest.making import QUIET, RIGHT, change_facts, make_load, make_series
from tests.loadtest.virtual import simulate_series

OPEN = make_load(20.0, duration_s=12.0)
BAD = '{"label": "bad", "probabilities": {"good": 0.1, "bad": 0.9}}'
FAILED = {"good": False, "findings": [{"model": "bert", "name": "allocator"}]}
STOCK = {"is_kit": False, "verify_before": None, "verify_after": None}


def rules_of(series):
    return [finding.rule for finding in find_findings(series)]


@pytest.mark.parametrize("load", [OPEN, make_load(percentile=99.9, duration_s=12.0)])
def test_a_good_run_has_no_findings(load):
    series = simulate_series(load)
    assert rules_of(series) == []
    assert not is_disturbed(series)


def make_late(rows):
    rows.loc[::20, ["sent", "ended"]] += 0.5


def fail_some(rows):
    rows.loc[rows.index[-60:-50], ["status", "error"]] = [503, "code=503"]


SIMULATED = {
    "generator late": ({"change": make_late}, "were sent 500 ms late or more; 20 ms are accepted"),
    "generator CPU": ({"cores": 0.9}, "90% of a core in one process"),
    "errors": ({"change": fail_some}, "10 × code=503"),
    "too few requests": ({"load": replace(OPEN, percentile=99.9)}, "good requests; 10000 are needed"),
    "CPU stolen": ({"host": replace(QUIET, stolen=45.0)}, "7.0% of all CPU time"),
    "other programs": ({"host": replace(QUIET, others=96.0)}, "15% of all CPU time"),
    "wrong answers": ({"answers": (BAD,)}, "expected 'good' with 0.9000"),
}
MADE = {
    "no answers": (make_series(answers=AnswerCheck(source="test")), "0 answers were kept"),
    "verify": (make_series(facts={"verify_after": FAILED}), "bert: allocator"),
    "workers": (make_series(facts={"pids_after": (1, 7)}), "processes 2, 7"),
    "repeats differ": (make_series(rates=(10.0, 8.0)), "8.0 to 10.0 requests/s"),
    "not verified": (make_series(facts=STOCK), "has no plan"),
    "mix-ups": (make_series(answers=replace(RIGHT, distinguishable_pairs=None)), "one payload"),
    "not validated": (make_series(load=make_load(driver="ab"), answers=AnswerCheck()), "ab keeps none"),
}


@pytest.mark.parametrize("rule", [*SIMULATED, *MADE])
def test_each_rule_fires_on_its_fault_and_on_nothing_else(rule):
    if rule in SIMULATED:
        faults, evidence = SIMULATED[rule]
        series = simulate_series(**{"load": OPEN, **faults})
    else:
        series, evidence = MADE[rule]
    assert set(rules_of(series)) == {rule}
    finding = find_findings(series)[0]
    assert evidence in finding.evidence
    assert bool(finding.state and finding.next_step)
    assert str(finding).startswith("INVALID: " if rule in RULES else "note: ")
    assert bool(find_doubts(series)) == (rule in RULES)
    assert is_disturbed(series) == (rule in validity.OF_THE_MACHINE)


def test_every_rule_is_tested_here():
    assert {*SIMULATED, *MADE} == {*RULES, *NOTES}
    (doubt,) = find_doubts(make_series(rates=(0.0,)))
    assert (doubt.rule, doubt.evidence) == ("errors", "no request began in the window")


def test_one_bad_repeat_of_many_is_enough():
    good = make_series()
    for change in ({"errors": 1}, {"cpu": replace(QUIET, stolen=45.0)}, {"answers": replace(RIGHT, wrong=1)}):
        windows = (*good.windows[:2], replace(good.windows[2], **change))
        assert len(find_doubts(replace(good, windows=windows))) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_failed_verify_is_told_with_its_moment_and_a_death_with_its_cause(moment):
    (doubt,) = find_doubts(change_facts(make_series(), **{f"verify_{moment}": FAILED}))
    assert (doubt.rule, doubt.state) == ("verify", f"verify failed {moment} the run")
    broken = change_facts(make_series(), verify_after={"good": False, "findings": [], "error": "no plan"})
    assert find_doubts(broken)[0].evidence == "no plan"
    died = change_facts(make_series(), pids_after=(1, 7), causes=("a1: TorchServe is gone",))
    assert find_doubts(died)[0].evidence == "processes 2, 7; a1: TorchServe is gone"


def test_labels_other_than_those_of_fp32_make_the_figures_invalid():
    series = make_series(answers=replace(RIGHT, labels_same=90))
    assert rules_of(series) == ["wrong answers"]
    assert "only 90.0% of the labels" in find_doubts(series)[0].state
    # A baseline with another preprocessing states its own limit.
    assert find_doubts(change_facts(series, least_agreement=0.85)) == []


@pytest.mark.parametrize(
    ("load", "facts", "rules", "why"),
    [
        (make_load(), {}, ["no answers"], ""),
        (make_load(), STOCK, ["no answers", "not verified"], ""),
        (make_load(), {**STOCK, "models": ()}, ["not verified", "not validated"], "not known what is right"),
        (make_load(locustfile="own.py", models=()), {}, ["not validated"], "a locustfile of one's own"),
    ],
)
def test_what_was_not_validated_says_why_and_is_invalid_only_where_it_could_be(load, facts, rules, why):
    series = make_series(load=load, facts=facts, answers=AnswerCheck())
    assert rules_of(series) == rules
    assert why in find_findings(series)[-1].evidence


def test_generators_elsewhere_take_nothing_from_the_server():
    crowded = make_series(generator_cores=(0.7,), cpu=replace(QUIET, cpus=2, others=0.0))
    assert rules_of(crowded) == ["generator CPU"]
    assert rules_of(replace(crowded, generated_here=False)) == []


def test_a_rate_beyond_the_peak_of_a_search_may_fail_and_be_short():
    series = simulate_series(replace(OPEN, percentile=99.9), change=fail_some)
    assert {one.rule for one in find_doubts(series)} == set(validity.ENDS_OF_A_SEARCH)
    assert find_doubts(series, without=validity.ENDS_OF_A_SEARCH) == []
