"""RUNGS=starts: each engine starts anew each time, and its first answers are held beside its last ones."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from loadtest.experiments.ladder.engines import list_engine_rungs
from loadtest.experiments.ladder.rungs import KINDS, STARTS
from loadtest.experiments.ladder.starts import MOST_USERS, TIMING, Starts, judge, name_start
from loadtest.report import make_section
from loadtest.report.markdown import render_section
from loadtest.trials.block import Timing
from tests.loadtest.experiments.ladder.results import BUSY, LAYOUT
from tests.loadtest.making import RIGHT, change_facts, make_kept, make_rows, make_series

RUNGS = [rung for rung in list_engine_rungs() if rung.name in ("ipex-int8", "openvino-int8")]
LATER_S = 0.05


def make_start(name, seconds=12.0):
    """100 requests a second for ten seconds."""
    return change_facts(make_series(name, (100.0,)), start={"worker_seconds": seconds})


def write_starts(tmp_path, *, made=make_start, blocks=None, refused=None, more=(), rungs=RUNGS):
    """The first of them, and `more`."""
    asked = {
        "model": "resnet50",
        "archive": {"id": "abc", "weights": "random (seed 0)", "notes": []},
        "timing": asdict(TIMING),
        "rungs": {rung.name: asdict(rung) for rung in rungs},
    }
    names = [name_start(rung, number) for number in range(TIMING.repeats) for rung in rungs][:blocks]
    series = {name: [] if name in (refused or {}) else [made(name)] for name in (*names, *more)}
    return make_kept(
        tmp_path, series, kind=KINDS[STARTS], name="starts-resnet50", asked=asked,
        refused={name: {name: why} for name, why in (refused or {}).items()},
    )  # fmt: skip


def list_left(kept):
    """What would be measured from here on, if all of it went well."""
    course = Starts(model="resnet50", timing=TIMING, rungs=RUNGS, layout=LAYOUT)
    return [block.name for block in course.list_left(kept)]


def slow_down(name, places, slow_s):
    """One start with some slow answers."""
    series = make_start(name)
    (rows,) = series.records
    slow = np.where(np.isin(np.arange(len(rows)), places), slow_s, LATER_S)
    return replace(series, records=(replace(rows, ended=rows.sent + slow),))


def disturb(series):
    return replace(series, trials=tuple(replace(one, cpu=BUSY) for one in series.trials))


def make_disturbed(*names):
    return lambda name: disturb(make_start(name)) if name in names else make_start(name)


def test_each_engine_starts_in_turn_under_a_name_of_its_own(tmp_path):
    course = Starts(model="resnet50", timing=Timing(seconds=5.0, repeats=3), rungs=RUNGS, layout=LAYOUT)
    kept = write_starts(tmp_path, blocks=0)
    first = course.next_block(kept)
    (turn,) = first.turns
    assert (first.name, turn.member.name, turn.level) == ("ipex-int8-1", "ipex-int8-1", MOST_USERS)
    assert (turn.scenario.duration_s, turn.scenario.warm_up_s, first.warm_up_s) == (5.0, 0.0, 0.0)
    assert list_left(kept)[:3] == ["ipex-int8-1", "openvino-int8-1", "ipex-int8-2"]
    assert len(list_left(kept)) == 2 * TIMING.repeats
    assert course.estimate(kept) == 6 * 35.0


def test_no_more_users_are_let_loose_at_once_than_the_batches_hold(tmp_path):
    """FP32's hold 8: with 24 users of two workers 8 of the first answers would wait for two batches."""
    rungs = [rung for rung in list_engine_rungs() if rung.name in ("eager-fp32", "ipex-int8")]
    course = Starts(model="resnet50", timing=TIMING, rungs=rungs, layout=LAYOUT)
    blocks = list(course.list_left(write_starts(tmp_path, blocks=0, rungs=rungs)))
    levels = {block.name: (block.turns[0].level, *block.turns[0].scenario.steps) for block in blocks}
    assert (levels["eager-fp32-1"], levels["ipex-int8-1"]) == ((16, 16), (24, 24))


def test_a_disturbed_trial_is_not_measured_again_in_a_server_that_is_no_longer_new(tmp_path):
    course = Starts(model="resnet50", timing=TIMING, rungs=RUNGS, layout=LAYOUT)
    assert course.next_block(write_starts(tmp_path, blocks=0)).attempts == 1


def test_what_was_cut_off_goes_on_and_ends(tmp_path):
    assert list_left(write_starts(tmp_path, blocks=3))[0] == "openvino-int8-2"
    assert not make_section(write_starts(tmp_path, blocks=3)).whole
    assert list_left(write_starts(tmp_path)) == []


def test_another_start_is_made_for_one_that_was_disturbed(tmp_path):
    kept = write_starts(tmp_path, made=make_disturbed("ipex-int8-1"))
    assert list_left(kept) == ["ipex-int8-5"]
    kept = write_starts(tmp_path, made=make_disturbed("ipex-int8-1"), more=["ipex-int8-5"])
    assert list_left(kept) == []
    assert judge(kept)[0].why == "the median of 4 starts, from the least to the most"
    assert make_section(kept).valid
    every = [f"ipex-int8-{number}" for number in range(1, 7)]
    kept = write_starts(tmp_path, made=make_disturbed(*every), more=every[4:])
    assert list_left(kept) == []
    assert judge(kept)[0].why == "starts that the machine did not disturb: 0, at least 2 are needed"


def test_a_wrong_answer_in_one_start_is_no_matter_of_the_machine(tmp_path):
    def spoil(name):
        series = make_start(name)
        wrong = replace(RIGHT, wrong=1)
        trials = tuple(replace(one, answers=wrong) for one in series.trials)
        return replace(series, trials=trials) if name == "ipex-int8-2" else series

    kept = write_starts(tmp_path, made=spoil)
    verdicts = judge(kept)
    assert [one.figure is None for one in verdicts] == [True, True, False, False]
    assert "1 of 100 answers are wrong" in verdicts[0].why
    assert not make_section(kept).valid


def test_what_the_kit_refuses_is_asked_once_and_told(tmp_path):
    kept = write_starts(tmp_path, blocks=2, refused={"openvino-int8-1": "needs AVX2"})
    assert {*list_left(kept)} == {name_start(RUNGS[0], number) for number in range(1, TIMING.repeats)}
    assert all(one.what.startswith("ipex") for one in judge(kept))
    (doubt,) = make_section(kept).findings
    assert (doubt.where, doubt.state, doubt.invalid) == ("openvino int8", "needs AVX2", False)


@pytest.mark.parametrize(("first_s", "ratio", "met"), [(LATER_S, 1.0, True), (10 * LATER_S, 10.0, False)])
def test_slow_first_answers_of_every_start_are_found(tmp_path, first_s, ratio, met):
    spikes = judge(write_starts(tmp_path, made=lambda name: slow_down(name, [3], first_s)))[1]
    assert spikes.what == "ipex int8: p99.9 of the first quarter since ready / of the last one"
    assert spikes.figure.value == pytest.approx(ratio)
    assert spikes.met is met


def test_a_hiccup_of_one_start_is_no_spike_of_the_engine(tmp_path):
    hit = "ipex-int8-1"
    kept = write_starts(tmp_path, made=lambda name: slow_down(name, range(8) if name == hit else [], 1.0))
    spikes = judge(kept)[1]
    assert spikes.met
    assert spikes.figure.high == pytest.approx(20.0)


@pytest.mark.parametrize(("seconds", "met"), [(25.0, True), (25.1, False)])
def test_the_median_start_is_judged(tmp_path, seconds, met):
    spread = {f"ipex-int8-{number + 1}": seconds + shift for number, shift in enumerate((-5, 0, 0, 20))}
    kept = write_starts(tmp_path, made=lambda name: make_start(name, spread.get(name, 3.0)))
    started = judge(kept)[0]
    assert (started.figure.value, started.met) == (seconds, met)
    assert (started.figure.low, started.figure.high) == (seconds - 5, seconds + 20)


def test_too_few_requests_leave_the_time_to_ready(tmp_path):
    def shorten(name):
        series = make_start(name)
        return replace(series, records=(make_rows(1.0),))

    started, spikes = judge(write_starts(tmp_path, made=shorten))[:2]
    assert started.met
    assert "10 requests are too few for quarters" in spikes.why


def test_the_page_tells_both_figures_of_each_engine(tmp_path):
    page = render_section(make_section(write_starts(tmp_path)))
    assert "Starts of ResNet50's engines" in page
    assert "| openvino int8: start to ready" in page
    assert "4 starts of each, 20 s each." in page


def test_only_all_engines_make_it_whole(tmp_path):
    assert not make_section(write_starts(tmp_path)).whole
    assert make_section(write_starts(tmp_path, rungs=list_engine_rungs())).whole
