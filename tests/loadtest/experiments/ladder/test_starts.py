"""RUNGS=starts: each engine starts anew each time, and its first answers are held beside its last ones."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from loadtest.experiments.ladder.engines import list_engine_rungs
from loadtest.experiments.ladder.rungs import KINDS, STARTS
from loadtest.experiments.ladder.starts import TIMING, Starts, judge, name_start
from loadtest.report import make_section
from loadtest.report.markdown import render_section
from loadtest.trials.block import Timing
from tests.loadtest.experiments.ladder.results import BUSY, LAYOUT
from tests.loadtest.making import change_facts, make_kept, make_rows, make_series

RUNGS = [rung for rung in list_engine_rungs() if rung.name in ("ipex-int8", "openvino-int8")]
LATER_S = 0.05


def make_start(name, seconds=12.0, first_s=LATER_S):
    """100 requests a second for ten seconds; the first five answers take `first_s`."""
    series = change_facts(make_series(name, (100.0,)), start={"worker_seconds": seconds})
    rows = make_rows(100.0)
    slow = np.where(np.arange(len(rows)) < 5, first_s, LATER_S)
    return replace(series, records=(replace(rows, ended=rows.sent + slow),))


def write_starts(tmp_path, *, made=None, blocks=None, refused=None):
    asked = {
        "model": "resnet50",
        "archive": {"id": "abc", "weights": "random (seed 0)", "notes": []},
        "timing": asdict(TIMING),
        "rungs": {rung.name: asdict(rung) for rung in RUNGS},
    }
    names = [name_start(rung, number) for number in range(TIMING.repeats) for rung in RUNGS][:blocks]
    series = {name: [] if name in (refused or {}) else [(made or make_start)(name)] for name in names}
    return make_kept(
        tmp_path, series, kind=KINDS[STARTS], name="starts-resnet50", asked=asked,
        refused={name: {name: why} for name, why in (refused or {}).items()},
    )  # fmt: skip


def list_blocks(kept, timing=TIMING):
    """What would be measured from here on, if all of it went well."""
    course = Starts(model="resnet50", timing=timing, rungs=RUNGS, layout=LAYOUT)
    return [block.name for block in course._list_left(kept)]


def test_each_engine_starts_in_turn_under_a_name_of_its_own(tmp_path):
    course = Starts(model="resnet50", timing=Timing(seconds=5.0, repeats=3), rungs=RUNGS, layout=LAYOUT)
    kept = write_starts(tmp_path, blocks=0)
    first = course.next_block(kept)
    (turn,) = first.turns
    assert (first.name, turn.member.name, turn.level) == ("ipex-int8-1", "ipex-int8-1", 8)
    assert (turn.scenario.duration_s, turn.scenario.warm_up_s, first.warm_up_s) == (5.0, 0.0, 0.0)
    assert list_blocks(kept)[:3] == ["ipex-int8-1", "openvino-int8-1", "ipex-int8-2"]
    assert len(list_blocks(kept)) == 2 * TIMING.repeats
    assert course.estimate(kept) == 6 * 35.0


def test_what_was_cut_off_goes_on_and_ends(tmp_path):
    kept = write_starts(tmp_path, blocks=3)
    assert list_blocks(kept)[0] == "openvino-int8-2"
    course = Starts(model="resnet50", timing=TIMING, rungs=RUNGS, layout=LAYOUT)
    assert course.next_block(write_starts(tmp_path)) is None


def test_what_the_kit_refuses_is_asked_once_and_told(tmp_path):
    kept = write_starts(tmp_path, blocks=2, refused={"openvino-int8-1": "needs AVX2"})
    assert {*list_blocks(kept)} == {name_start(RUNGS[0], number) for number in range(1, TIMING.repeats)}
    assert judge(kept)[-1].why == "the kit refuses it: needs AVX2"


@pytest.mark.parametrize(("first_s", "ratio", "met"), [(LATER_S, 1.0, True), (10 * LATER_S, 10.0, False)])
def test_slow_first_answers_are_found_over_all_starts(tmp_path, first_s, ratio, met):
    kept = write_starts(tmp_path, made=lambda name: make_start(name, first_s=first_s))
    spikes = judge(kept)[1]
    assert spikes.what == "ipex int8: p99.9 of the first quarter since ready / of the last one"
    assert spikes.figure.value == pytest.approx(ratio)
    assert spikes.met is met


def test_a_hiccup_in_one_start_is_no_spike_of_the_engine(tmp_path):
    """One slow answer in a thousand is what p99.9 leaves out."""

    def make(name):
        series = make_start(name)
        (rows,) = series.records
        slow = np.where((np.arange(len(rows)) == 3) & (name == "ipex-int8-1"), 1.0, LATER_S)
        return replace(series, records=(replace(rows, ended=rows.sent + slow),))

    assert judge(write_starts(tmp_path, made=make))[1].met


@pytest.mark.parametrize(("seconds", "met"), [(25.0, True), (25.1, False)])
def test_the_median_start_is_judged(tmp_path, seconds, met):
    spread = {f"ipex-int8-{number + 1}": seconds + shift for number, shift in enumerate((-5, 0, 0, 20))}
    kept = write_starts(tmp_path, made=lambda name: make_start(name, spread.get(name, 3.0)))
    started = judge(kept)[0]
    assert (started.figure.value, started.met) == (seconds, met)
    assert (started.figure.low, started.figure.high) == (seconds - 5, seconds + 20)


def test_starts_in_doubt_are_left_out_and_too_few_give_no_figure(tmp_path):
    def make(name, busy=()):
        series = make_start(name)
        disturbed = tuple(replace(one, cpu=BUSY) for one in series.trials)
        return replace(series, trials=disturbed) if name in busy else series

    kept = write_starts(tmp_path, made=lambda name: make(name, ("ipex-int8-1",)))
    assert judge(kept)[0].why == "the median of 3, the shortest and the longest"
    kept = write_starts(tmp_path, made=lambda name: make(name, ("ipex-int8-1", "ipex-int8-2", "ipex-int8-3")))
    assert judge(kept)[0].figure is None
    assert judge(kept)[0].why.startswith("1 starts may be quoted, 2 are the least; INVALID: ipex-int8-1")
    assert not make_section(kept).whole


def test_the_page_tells_both_figures_of_each_engine(tmp_path):
    page = render_section(make_section(write_starts(tmp_path)))
    assert "Starts of ResNet50's engines" in page
    assert "| openvino int8: start to ready | 12 s |" in page
    assert "4 starts of each, 20 s each." in page
