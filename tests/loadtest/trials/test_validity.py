"""Each rule fires on its fault and on nothing else, with state, evidence and next step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.scenarios.scenario import Latency
from loadtest.trials.validity import (
    ENDS_OF_A_SEARCH,
    NOTES,
    OF_THE_MACHINE,
    RULES,
    find_doubts,
    find_findings,
    is_disturbed,
)
from tests.loadtest.making import QUIET, RIGHT, change_facts, make_scenario, make_series
from tests.loadtest.simulated import simulate_series

OPEN = make_scenario("open", repeats=2)


def rules_of(series) -> list[str]:
    return [finding.rule for finding in find_findings(series)]


@pytest.mark.parametrize(("loop", "level"), [("open", 20), ("closed", 16)])
def test_a_good_run_has_no_findings(loop, level):
    assert rules_of(simulate_series(make_scenario(loop, repeats=2), level=level)) == []


def make_late(records) -> None:
    records.sent[::20] += 0.5
    records.ended[::20] += 0.5


def fail_some(records) -> None:
    records.status[-60:-50] = 503
    records.error[-60:-50] = "code=503"


def answer_wrong(records) -> None:
    object.__setattr__(records, "answers", ('{"label": "bad", "probabilities": {"good": 0.1, "bad": 0.9}}',))


@pytest.mark.parametrize(
    ("rule", "scenario", "faults", "evidence"),
    [
        ("generator late", OPEN, {"change": make_late}, "were sent 500 ms late or more"),
        ("generator CPU", OPEN, {"cores": 0.9}, "90% of a core in one process"),
        ("errors", OPEN, {"change": fail_some}, "10 × code=503"),
        ("too few requests", replace(OPEN, latency=Latency(percentile=99.9)), {}, "interval needs 3688"),
        ("CPU stolen", OPEN, {"host": replace(QUIET, stolen=45.0)}, "7.0% of all CPU time"),
        ("other programs", OPEN, {"host": replace(QUIET, others=96.0)}, "15% of all CPU time"),
        ("wrong answers", OPEN, {"change": answer_wrong}, "expected 'good' with 0.9000"),
    ],
)
def test_a_fault_makes_the_figures_invalid(rule, scenario, faults, evidence):
    series = simulate_series(scenario, level=20, **faults)
    assert set(rules_of(series)) == {rule}
    (finding, *_) = find_doubts(series)
    assert evidence in finding.evidence
    assert finding.state
    assert finding.next_step
    assert is_disturbed(series) == (rule in OF_THE_MACHINE)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_failed_verify_makes_the_figures_invalid(moment):
    differs = {"model": "bert", "item": "allocator", "state": "DIFFERS"}
    failed = {"good": False, "findings": [differs, {"model": None, "item": "plan", "state": "ok"}]}
    series = change_facts(make_series(), **{f"verify_{moment}": failed})
    assert [(one.rule, one.state, one.evidence) for one in find_doubts(series)] == [
        ("verify", f"verify failed {moment} the run", "bert: allocator")
    ]


def test_a_verify_that_could_not_run_is_a_failed_one():
    series = change_facts(make_series(), verify_after={"good": False, "findings": [], "error": "no plan"})
    assert find_doubts(series)[0].evidence == "no plan"


def test_a_worker_that_was_started_again_makes_the_figures_invalid():
    series = change_facts(make_series(), pids_after=(1, 7))
    assert [(one.rule, one.evidence) for one in find_doubts(series)] == [("workers", "processes 2, 7")]
    told = change_facts(series, causes=("a1: TorchServe is gone (killed?)",))
    assert find_doubts(told)[0].evidence == "processes 2, 7; a1: TorchServe is gone (killed?)"


def test_a_server_without_a_plan_is_not_verified_and_the_figures_stand():
    series = change_facts(make_series(), is_kit=False, verify_before=None, verify_after=None)
    assert (rules_of(series), find_doubts(series)) == (["not verified"], [])


def test_labels_other_than_those_of_fp32_make_the_figures_invalid():
    series = make_series(answers=replace(RIGHT, labels_same=90))
    assert "only 90.0% of the labels" in find_doubts(series)[0].state
    # A baseline with another preprocessing states its own limit.
    assert find_doubts(change_facts(series, least_agreement=0.85)) == []


def test_a_run_without_judged_answers_is_invalid():
    unseen = replace(RIGHT, checked=0, labels_judged=0, labels_same=0)
    assert rules_of(make_series(answers=unseen)) == ["no answers"]


def test_errors_within_the_allowance_leave_the_figures_standing():
    scenario = replace(OPEN, allowed_error_share=0.06)
    assert find_doubts(simulate_series(scenario, level=20, change=fail_some)) == []


def test_generators_elsewhere_take_nothing_from_the_server():
    crowded = make_series(generator_cores=(0.7,), cpu=replace(QUIET, cpus=2, others=0.0))
    assert rules_of(crowded) == ["generator CPU"]
    assert rules_of(replace(crowded, generated_here=False)) == []


def test_a_closed_loop_quotes_no_latency_and_needs_no_count():
    scenario = make_scenario("closed", repeats=2, latency=Latency(percentile=99.9))
    assert find_doubts(simulate_series(scenario, level=16)) == []


def test_a_rate_beyond_the_peak_of_a_search_may_fail_and_be_short():
    scenario = replace(OPEN, latency=Latency(percentile=99.9))
    series = simulate_series(scenario, level=20, change=fail_some)
    assert {one.rule for one in find_doubts(series)} == set(ENDS_OF_A_SEARCH)
    assert find_doubts(series, without=ENDS_OF_A_SEARCH) == []


def test_repeats_far_apart_are_said_and_the_figures_stand():
    series = make_series(rates=(10.0, 8.0))
    assert (rules_of(series), find_doubts(series)) == (["repeats differ"], [])


def test_every_rule_is_tested_here():
    assert len(RULES) + len(NOTES) == 12
