"""Sides take turns, and nothing of a side's warm-up is in its figures."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.turns import Timing, take_turns
from tests.loadtest.making import FakeSide, make_measurement

TIMING = Timing(seconds=10, warm_up_seconds=4, repeats=3)


def test_the_order_moves_on_with_each_repeat():
    log: list[str] = []
    sides = [FakeSide(name=name, rates=[1.0] * 4, log=log) for name in "abc"]
    take_turns(sides, TIMING, lambda line: None)
    assert "".join(log) == "abc" + "abc" + "bca" + "cab"


def test_the_warm_up_is_kept_apart():
    side = FakeSide(name="a", rates=[99.0, 1.0, 3.0, 2.0])
    turns = take_turns([side], TIMING, lambda line: None)["a"]
    assert [one.rate for one in turns.warm_up] == [99.0]
    assert (turns.rate.median, turns.rate.low, turns.rate.high) == (2.0, 1.0, 3.0)


def test_a_side_that_is_warm_is_not_warmed_again():
    log: list[str] = []
    sides = [FakeSide(name=name, rates=[1.0] * 4, log=log) for name in "ab"]
    turns = take_turns(sides, TIMING, lambda line: None, warm={"a"})
    assert "".join(log) == "b" + "ab" + "ba" + "ab"
    assert turns["a"].warm_up == ()


class HalfAsLong(FakeSide):
    """Its turns end early, as ab's do while its rate is not known."""

    def measure(self, seconds):
        return super().measure(seconds / 2)


def test_a_warm_up_that_ends_early_goes_on():
    side = HalfAsLong(name="a", rates=[float(n) for n in range(60)])
    turns = take_turns([side], Timing(seconds=10, warm_up_seconds=4, repeats=1), lambda line: None)["a"]
    assert len(turns.warm_up) > 1
    assert sum(one.seconds for one in turns.warm_up) >= 3.99


def test_each_turn_is_reported():
    lines: list[str] = []
    take_turns([FakeSide(name="kit", rates=[1.0, 2.0, 3.0, 4.0])], TIMING, lines.append)
    assert [line.split()[:4] for line in lines[1:]] == [["repeat", str(n), "of", "3:"] for n in (1, 2, 3)]


class Silent(FakeSide):
    """Too slow for any answer in its time."""

    def measure(self, seconds):
        self.log.append(self.name)
        return make_measurement(0.0, requests=0, seconds=seconds)


def test_a_side_that_gives_no_answer_has_no_figure():
    with pytest.raises(LoadTestError, match="kit gave no answer in 10 s; measure longer"):
        take_turns([Silent(name="kit", rates=[])], TIMING, lambda line: None)
