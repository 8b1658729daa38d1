"""What is measured next follows from what is kept alone, so a ladder that was cut off goes on."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder import experiment as module
from loadtest.experiments.ladder.experiment import Course, check_asked, judge, make_member
from loadtest.experiments.ladder.rungs import TIMING, find_rung, list_all
from tests.loadtest.experiments.ladder.results import LAYOUT, disturb, plant_restarted, write_ladder


def make_course(model="resnet50", available_mib=1e6):
    return Course(
        model=model, timing=TIMING, rungs=list_all(model), layout=LAYOUT, available_mib=available_mib
    )


def list_members(block):
    return [turn.member.name for turn in block.turns]


def test_a_new_ladder_begins_with_stock_and_ends_when_every_rung_is_kept(tmp_path):
    course = make_course()
    first = course.next_block(write_ladder(tmp_path, blocks=0))
    assert list_members(first)[:3] == ["stock", "stock-one", "kit-off"]
    assert (first.repeats, first.warm_up_s) == (3, 1.5)
    assert {turn.scenario.payloads for turn in first.turns} == {"cuts"}
    assert course.next_block(write_ladder(tmp_path)) is None


def test_a_ladder_that_was_cut_off_goes_on_even_with_less_memory(tmp_path):
    kept = write_ladder(tmp_path, blocks=1)
    done = set(kept.blocks[0].systems)
    after = list_members(make_course().next_block(kept))
    smaller = list_members(make_course(available_mib=20_000).next_block(kept))
    assert len(set(after) & done) == 1  # what the first new rung is compared with is carried over
    assert smaller == after[: len(smaller)]


def test_a_block_that_the_machine_disturbed_is_measured_once_more(tmp_path):
    kept = write_ladder(tmp_path, change={"jemalloc": disturb})
    course, disturbed = make_course(), kept.find("from-jemalloc") or kept.blocks[1]
    again = course.next_block(kept)
    assert again.name == disturbed.name
    assert list_members(again) == [*disturbed.systems, *disturbed.refused]
    twice = dataclasses.replace(kept, blocks=(*kept.blocks, disturbed))
    assert course.next_block(twice) is None


def test_servers_without_buckets_are_sent_each_length_before_they_are_measured():
    asked = []
    system = SimpleNamespace(
        list_workers=lambda model: [1, 2], ask=lambda payloads, *, at_once: asked.extend(payloads)
    )
    for name in ("int8", "top"):
        rung = find_rung(list_all("bert"), name)
        make_member(rung, "bert", LAYOUT, ["short", "long"]).inspect(system)
    assert asked == 3 * ["short", "long"]  # of int8 alone; two workers take three passes


def test_a_rungs_figure_is_its_ratio_and_a_doubtful_one_has_none(tmp_path):
    verdicts = {one.what: one for one in judge(write_ladder(tmp_path))}
    ipex = verdicts["+ IPEX, to channels-last"]
    assert ipex.met
    assert ipex.figure.value == pytest.approx(1.5, rel=0.02)
    assert verdicts["stock TorchServe as it comes"].unit == " requests/s"
    assert not any("without IPEX" in what for what in verdicts)  # the kit refuses it, which is no miss
    verdicts = {one.what: one for one in judge(write_ladder(tmp_path, change={"jemalloc": plant_restarted}))}
    assert not verdicts["+ jemalloc"].met
    assert "a worker died" in verdicts["+ jemalloc"].why


def test_a_worker_tells_what_memory_is_its_own(monkeypatch):
    monkeypatch.setattr(module, "read_anonymous_mib", {1: 800, 2: None}.get)
    member = make_member(find_rung(list_all("bert"), "top"), "bert", LAYOUT)
    system = SimpleNamespace(list_workers=lambda model: [1, 2])
    assert member.inspect_after(system) == {module.OWN_MIB: [800, None]}


@pytest.mark.parametrize("model", ["resnet51", "resnet50 bert"])
def test_a_ladder_is_of_one_model_that_it_knows(model):
    with pytest.raises(
        LoadTestError, match=f"MODELS must be one of resnet50, bert, densenet121: got {model}"
    ):
        check_asked(model)


def test_without_an_archive_the_way_to_one_is_told(tmp_path):
    site = SimpleNamespace(store=tmp_path)
    with pytest.raises(LoadTestError, match=r"no archive bert.mar in the store: `make ladder` builds it"):
        module.make_experiment("bert", site)
