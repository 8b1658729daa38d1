"""Scenarios are read; a wrong value is answered with key, allowed values, what was there, and the file."""

from __future__ import annotations

import re

import pytest

from loadtest.errors import LoadTestError
from loadtest.load import change_scenario, find_duration, parse_scenario, parse_share, read_scenario
from tests.loadtest.making import make_load

CLOSED = {"model": "bert", "payloads": "texts", "users": 8}
OPEN = {"model": "bert", "payloads": "texts", "rate": [20, "60%"]}


def parse(raw):
    return parse_scenario(raw, name="mine", source="mine.yaml")


@pytest.mark.parametrize(("model", "limit_ms"), [("bert", 1000), ("resnet50", 2000), ("my-v1.2_x", None)])
def test_there_is_a_closed_and_an_open_scenario_for_any_model(model, limit_ms):
    closed, opened = (read_scenario(f"{model}-{loop}") for loop in ("closed", "open"))
    assert (closed.is_open, closed.levels, opened.is_open, opened.levels) == (
        False,
        ("auto",),
        True,
        ("60%",),
    )
    assert {one.load.models for one in (closed, opened)} == {(model,)}
    assert [one.name for one in (closed, opened)] == [f"{model}-closed", f"{model}-open"]
    assert {one.load.payloads for one in (closed, opened)} == {""}  # what suits the model
    assert (opened.load.limit_ms, opened.load.percentile) == (limit_ms, 95)


def test_an_open_loop_of_a_slow_model_lasts_until_its_percentile_can_be_quoted():
    """p95 needs 200 requests; three repeats together have a fifth more."""
    opened = read_scenario("any-open")
    durations = {capacity: opened.at("60%", capacity).duration_s for capacity in (100.0, 2.0, 0.001)}
    assert durations == {100.0: 15.0, 2.0: 67, 0.001: 120.0}
    assert opened.at("60%", 0.001).rate == 0.0006
    assert find_duration(make_load(2.0), 1, 1e9) == 120
    # Who asks for a duration gets that.
    assert change_scenario(opened, duration_s=5.0).at("60%", 2.0).duration_s == 5.0
    assert read_scenario("any-closed").at(4).duration_s == 12


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (3, "a scenario must be a mapping with model, payloads, .*: got 3"),
        ({**CLOSED, "warmup": 3}, "a scenario may hold .*warm_up_s.*: got 'warmup'"),
        ({"payloads": "texts", "users": 8}, "must name its model"),
        ({**CLOSED, "payloads": 3}, "may name its payloads"),
        ({**CLOSED, "rate": 5}, r"must have users \(closed loop\) or a rate \(open loop\)"),
        ({**CLOSED, "users": []}, "at least one value"),
        ({**CLOSED, "users": [8, 0]}, "users must be 1 to 10000, or auto: got 0"),
        ({**OPEN, "rate": "auto"}, "rate must be requests a second, or a share such as 60%: got 'auto'"),
        ({**CLOSED, "driver": "wrk"}, "driver must be locust or ab: got 'wrk'"),
        ({**OPEN, "driver": "ab"}, r"driver must be locust \(ab drives closed loops only\): got 'ab'"),
        ({**OPEN, "percentile": 98}, "percentile must be 50, 90, 95, 99, 99.9: got 98"),
        ({**OPEN, "limit_ms": -1}, "limit_ms must be above 0: got -1"),
        ({**OPEN, "seed": 1.5}, "seed must be a whole number from 0: got 1.5"),
        ({**CLOSED, "repeats": 0}, "repeats must be 1 to 100: got 0"),
        ({**CLOSED, "duration_s": float("nan")}, "duration_s must be 1 to 3600 seconds: got nan"),
        ({**CLOSED, "timeout_s": "1m"}, "timeout_s must be 0.1 to 600 seconds: got '1m'"),
    ],
)
def test_a_wrong_value_is_located(raw, message):
    with pytest.raises(LoadTestError, match=message + r".*\(mine.yaml\)"):
        parse(raw)


def test_a_file_of_ones_own_is_read_and_named_where_it_is_wrong(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: bert\npayloads: texts\nrate: [5, 60%]\nlimit_ms: 200\n")
    scenario = read_scenario(str(file))
    assert (scenario.name, scenario.levels, scenario.load.limit_ms) == ("mine", (5, "60%"), 200)
    assert read_scenario("mine", tmp_path) == scenario
    file.write_text("model: bert\npayloads: texts\nusers: none\n")
    with pytest.raises(LoadTestError, match=rf"users must be .*'none' \({re.escape(str(file))}\)"):
        read_scenario(str(file))
    file.write_bytes(b"model: [\xff")
    with pytest.raises(LoadTestError, match=r"mine\.yaml: not YAML"):
        read_scenario(str(file))
    with pytest.raises(
        LoadTestError, match=r"--scenario must be MODEL-closed, MODEL-open, or a \.yaml file: got other"
    ):
        read_scenario("other", tmp_path)


def test_a_level_makes_a_load_that_says_its_place_and_whether_it_is_validated():
    shares = {"60%": 0.6, "112.5%": 1.125, "200%": 2.0, "201%": None, "0%": None, 60: None, "x": None}
    assert {level: parse_share(level) for level in shares} == shares
    opened, closed = parse(OPEN), parse({**CLOSED, "users": "auto"})
    assert [opened.at(level, capacity=33.333).rate for level in opened.levels] == [20.0, 20.0]
    assert (closed.at("auto").users, closed.at(16.0).users, closed.at(16.0).rate) == (None, 16, None)
    loads = [make_load(), make_load(12.5), make_load(users=None)]
    assert [one.place for one in loads] == ["16 users", "12.5 requests/s", "auto users"]
    assert [(one.is_open, one.level) for one in loads] == [(False, 16.0), (True, 12.5), (False, 0.0)]
    assert not any(make_load(**how).validated for how in ({"driver": "ab"}, {"locustfile": "own.py"}))
    assert all(one.validated for one in loads)


def test_one_thing_can_be_changed_from_the_command_line():
    changed = change_scenario(parse(CLOSED), levels="8,16 32", duration_s=3.5, driver="ab", repeats=1)
    assert (changed.levels, changed.load.duration_s, changed.load.driver) == ((8, 16, 32), 3.5, "ab")
    assert (changed.repeats, changed.load.payloads) == (1, "texts")
    assert change_scenario(parse(OPEN), levels="50%, 25").levels == ("50%", 25)
    assert change_scenario(parse(OPEN), warm_up_s=0.0).load.warm_up_s == 0
    assert change_scenario(parse(OPEN), levels="", payloads="", limit_ms=None) == parse(OPEN)


@pytest.mark.parametrize(
    ("raw", "change", "message"),
    [
        (OPEN, {"driver": "ab"}, "driver must be locust"),
        (OPEN, {"levels": "auto"}, "rate must be .*: got 'auto'"),
        (CLOSED, {"levels": "many"}, "users must be .*: got 'many'"),
        (CLOSED, {"repeats": 0}, "repeats must be 1 to 100: got 0"),
    ],
)
def test_a_change_that_does_not_fit_is_rejected(raw, change, message):
    with pytest.raises(LoadTestError, match=message + r".*\(command line\)"):
        change_scenario(parse(raw), **change)
