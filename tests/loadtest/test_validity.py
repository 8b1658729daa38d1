"""Each rule fires on its fault and on nothing else, with state, evidence and next step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.host import CpuUse
from loadtest.validity import RULES, judge
from tests.loadtest.summaries import RIGHT, keep_virtual, make_scenario, with_percentile


def rules_of(summary) -> list[str]:
    return [finding.rule for finding in summary.findings]


@pytest.fixture
def good(tmp_path):
    return keep_virtual(tmp_path, make_scenario())[1]


def test_a_good_run_has_no_findings(good):
    assert good.findings == ()
    assert good.is_valid()


def make_late(records) -> None:
    records.sent[::20] += 0.5
    records.ended[::20] += 0.5


def fail_some(records) -> None:
    records.status[-50:-40] = 503
    records.error[-50:-40] = "code=503"


def answer_wrong(records) -> None:
    object.__setattr__(records, "answers", ('{"label": "bad", "probabilities": {"good": 0.1, "bad": 0.9}}',))


@pytest.mark.parametrize(
    ("rule", "scenario", "faults", "evidence"),
    [
        ("generator late", make_scenario(), {"change": make_late}, "were sent 500 ms late or more"),
        ("generator CPU", make_scenario(), {"cores": 0.9}, "90% of a core in one process"),
        ("errors", make_scenario(), {"change": fail_some}, "20 × code=503"),
        ("too few requests", with_percentile(make_scenario(), 99.9), {}, "its 95 % interval needs 3688"),
        ("CPU stolen", make_scenario(), {"host": CpuUse(busy=0.9, steal=0.07)}, "7.0% of all CPU time"),
        ("wrong answers", make_scenario(), {"change": answer_wrong}, "expected 'good' with 0.9000"),
    ],
)
def test_a_fault_makes_the_run_invalid(tmp_path, rule, scenario, faults, evidence):
    summary = keep_virtual(tmp_path, scenario, **faults)[1]
    assert set(rules_of(summary)) == {rule}
    assert not summary.is_valid()
    finding = summary.findings[0]
    assert evidence in finding.evidence
    assert finding.state
    assert finding.next_step


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_failed_verify_makes_the_run_invalid(good, moment):
    differs = {"model": "bert", "item": "allocator", "state": "DIFFERS"}
    failed = {"good": False, "findings": [differs, {"model": None, "item": "plan", "state": "ok"}]}
    summary = judge(replace(good, verify={**good.verify, moment: failed}))
    assert [(one.rule, one.state, one.evidence) for one in summary.findings] == [
        ("verify", f"verify failed {moment} the run", "bert: allocator")
    ]
    assert not summary.is_valid()


def test_a_verify_that_could_not_run_is_a_failed_one(good):
    summary = judge(replace(good, verify={"before": {"good": False, "findings": [], "error": "no plan"}}))
    assert summary.findings[0].evidence == "no plan"


def test_a_server_without_a_plan_is_not_verified_and_the_figures_stand(good):
    summary = judge(replace(good, verify={"before": None, "after": None}))
    assert (rules_of(summary), summary.is_valid()) == (["not verified"], True)


def test_labels_other_than_those_of_fp32_make_the_run_invalid(good):
    summary = judge(replace(good, answers=replace(RIGHT, fp32_agreement=0.9)))
    assert (rules_of(summary), summary.is_valid()) == (["wrong answers"], False)
    assert "only 90.0% of the labels" in summary.findings[0].state


def test_a_run_without_judged_answers_is_invalid(good):
    summary = judge(replace(good, answers=replace(RIGHT, checked=0, fp32_agreement=None)))
    assert rules_of(summary) == ["no answers"]


def test_errors_within_the_allowance_leave_the_run_valid(tmp_path):
    scenario = replace(make_scenario(), allowed_error_share=0.05)
    assert keep_virtual(tmp_path, scenario, change=fail_some)[1].is_valid()


def test_generators_elsewhere_take_nothing_from_the_server(tmp_path):
    _, summary = keep_virtual(tmp_path, make_scenario(), cores=0.7)
    crowded = replace(summary, cpus=2)
    assert rules_of(judge(crowded)) == ["generator CPU"]
    assert judge(replace(crowded, generated_here=False)).is_valid()


def test_a_closed_loop_quotes_no_latency_and_needs_no_count(tmp_path):
    scenario = with_percentile(make_scenario("closed"), 99.9)
    assert keep_virtual(tmp_path, scenario, level=16)[1].is_valid()


def test_a_doubt_of_one_step_of_a_search_leaves_the_others_valid(good):
    broken = replace(good.steps[0], errors=10, error_kinds={"code=503": 10})
    both = replace(good, steps=(good.steps[0], broken))
    assert [judge(both).is_valid(step) for step in (0, 1, None)] == [True, False, False]
    assert judge(replace(both, searched=True)).is_valid()


def test_a_search_that_the_generator_ended_is_invalid(tmp_path):
    _, summary = keep_virtual(tmp_path, make_scenario(), change=make_late)
    assert not replace(summary, searched=True).is_valid()


def test_repeats_far_apart_are_said_and_the_figures_stand(tmp_path):
    summary = keep_virtual(tmp_path, make_scenario("closed"), level=16)[1]
    step = summary.steps[0]
    repeats = (step.repeats[0], replace(step.repeats[1], rate=0.8 * step.repeats[0].rate))
    apart = judge(replace(summary, steps=(replace(step, repeats=repeats),)))
    assert (rules_of(apart), apart.is_valid()) == (["repeats differ"], True)


def test_every_rule_is_tested_here():
    assert len(RULES) == 10
