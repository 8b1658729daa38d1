"""What is left shrinks while a part goes on, and grows with the pace of what is done."""

from __future__ import annotations

import pytest

from loadtest.trials import progress
from loadtest.trials.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_goes_down_while_a_part_goes_on(clock):
    one = Progress(say=print, planned=900.0)
    clock[0] += 240
    assert one.describe() == "4 min, 11 left"


def test_the_pace_of_what_is_done_goes_for_the_rest(clock):
    """A third of the plan took twice its time."""
    one = Progress(say=print, planned=900.0)
    clock[0] += 600
    one.update(left=600.0)
    assert one.describe() == "10 min, 20 left"
    clock[0] += 300
    assert one.describe() == "15 min, 15 left"


def test_a_budget_of_time_passes_as_fast_as_time(clock):
    """What was foreseen at first was longer than the budget of ten minutes."""
    one = Progress(say=print, planned=780.0, paced=False)
    clock[0] += 240
    one.update(left=360.0)
    assert one.describe() == "4 min, 6 left"


def test_a_plan_that_is_exceeded_has_nothing_left(clock):
    one = Progress(say=print, planned=60.0)
    clock[0] += 600
    assert one.describe() == "10 min, 0 left"


def test_without_a_plan_there_is_no_time_in_front():
    said = []
    Progress(say=said.append, planned=0.0).report("a line")
    assert said == ["a line"]
