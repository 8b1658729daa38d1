"""Scenarios are read; a wrong value is answered with key, allowed values, what was there, and the file."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.payloads import SETS
from loadtest.scenarios.scenario import (
    Overrides,
    apply_overrides,
    list_scenarios,
    parse_scenario,
    parse_share,
    read_scenario,
)

CLOSED = {"model": "bert", "payloads": "texts", "arrival": {"loop": "closed"}, "steps": [8]}
OPEN = {**CLOSED, "arrival": {"loop": "open"}, "steps": [20, "60%"]}


def parse(raw):
    return parse_scenario(raw, name="mine", source="mine.yaml")


def test_there_is_a_closed_and_an_open_scenario_for_each_model():
    found = [read_scenario(name) for name in list_scenarios()]
    loops = {(one.model, one.arrival.loop) for one in found}
    assert loops == {(model, loop) for model in ("resnet50", "bert") for loop in ("closed", "open")}
    assert all(one.payloads in SETS for one in found)


def test_the_defaults_take_at_most_six_minutes():
    """With Locust's start and end (6 s a repeat), verify (2 × 5 s) and the open loop's probe (15 s)."""
    found = [read_scenario(name) for name in list_scenarios()]
    seconds = sum((one.warm_up_s + one.duration_s + 6) * one.repeats + 10 + 15 * one.is_open for one in found)
    assert seconds <= 360


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup": 3}, r"the scenario may hold .*warm_up_s.*: got 'warmup' \(mine.yaml\)"),
        ({"arrival": {"loop": "half"}}, r"arrival.loop must be closed or open: got 'half' \(mine.yaml\)"),
        ({"arrival": 3}, r"arrival must be a mapping with loop, process, seed: got 3 \(mine.yaml\)"),
        ({"steps": []}, r"steps must be a list of one or more: got \[\] \(mine.yaml\)"),
        ({"steps": ["60%"]}, r"steps\[0\] must be a number of users .*: got '60%' \(mine.yaml\)"),
        ({"steps": [8, 0]}, r"steps\[1\] must be a number of users .*: got 0 \(mine.yaml\)"),
        ({"driver": "wrk"}, r"driver must be locust or ab: got 'wrk' \(mine.yaml\)"),
        ({"repeats": True}, r"repeats must be a whole number from 1 to 100: got True"),
        ({"latency": {"limit_ms": -1}}, r"latency.limit_ms must be more than 0, or nothing: got -1"),
        ({"allowed_error_share": 2}, r"allowed_error_share must be from 0 to below 1: got 2"),
    ],
)
def test_a_wrong_value_is_located(change, message):
    with pytest.raises(LoadTestError, match=message):
        parse({**CLOSED, **change})


def test_ab_cannot_drive_an_open_loop():
    with pytest.raises(LoadTestError, match="driver must be locust: ab drives closed loops only: got 'ab'"):
        parse({**OPEN, "driver": "ab"})


@pytest.mark.parametrize(
    ("step", "share"), [("60%", 0.6), ("112.5%", 1.125), ("0%", None), (60, None), ("x", None)]
)
def test_shares(step, share):
    assert parse_share(step) == share


def test_one_thing_can_be_changed_from_the_command_line():
    changed = apply_overrides(parse(CLOSED), Overrides(users="8,16 32", duration="3.5", driver="ab"))
    assert (changed.steps, changed.duration_s, changed.driver) == ((8, 16, 32), 3.5, "ab")
    assert apply_overrides(parse(OPEN), Overrides(rate="50%,25")).steps == ("50%", 25)


@pytest.mark.parametrize(
    ("raw", "asked", "message"),
    [
        (OPEN, Overrides(users="8"), "USERS does not fit mine, whose loop is open"),
        (OPEN, Overrides(driver="ab"), "DRIVER=ab does not fit mine, whose loop is open"),
        (CLOSED, Overrides(rate="8"), "RATE does not fit mine, whose loop is closed"),
        (CLOSED, Overrides(users="many"), r"steps\[0\] must be .*: got 'many' \(command line\)"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(raw, asked, message):
    with pytest.raises(LoadTestError, match=message):
        apply_overrides(parse(raw), asked)
