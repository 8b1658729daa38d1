"""Results are kept whole, never overwritten, and come back as they were."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from loadtest.drivers.records import make_records, merge_records
from loadtest.errors import LoadTestError
from loadtest.results.kept import (
    EXPERIMENT_FILE,
    find_result,
    keep_block,
    list_results,
    read_kept,
    start_result,
    write_json,
)
from tests.loadtest.making import HOST, make_block, make_kept, make_scenario, make_series


def test_a_result_holds_everything_and_comes_back(tmp_path):
    kept = make_kept(
        tmp_path, {"first": [make_series("kit"), make_series("stock", [3.0, 3.1])]}, asked={"a": 1}
    )
    names = {file.name for file in kept.folder.iterdir()}
    rows = {"001-first.requests.csv.gz", "001-first.answers.jsonl.gz"}
    assert names == {EXPERIMENT_FILE, "001-first.json", *rows}
    read = read_kept(kept.folder)
    assert (read.blocks, read.asked, read.host) == (kept.blocks, {"a": 1}, HOST)
    head = gzip.decompress((kept.folder / "001-first.requests.csv.gz").read_bytes()).decode().splitlines()[0]
    assert head == "trial,payload,scheduled_s,sent_s,ended_s,status,answer,error"


def test_series_are_the_repeats_of_a_system_under_a_load(tmp_path):
    scenario = make_scenario("open", name="other")
    series = [
        make_series("kit"),
        make_series("kit", [5.0], scenario=scenario, level=8.0),
        make_series("stock"),
    ]
    kept = read_kept(make_kept(tmp_path, {"first": series}).folder)
    found = kept.list_series(kept.blocks[0])
    assert [(one.system, one.level, one.turn_rates) for one in found] == [
        ("kit", 16.0, [10.0] * 3), ("kit", 8.0, [5.0]), ("stock", 16.0, [10.0] * 3)
    ]  # fmt: skip
    assert [len(records) for records in found[0].records] == [100] * 3


def test_warm_ups_and_earlier_attempts_are_kept_and_never_quoted(tmp_path):
    first, again = make_series("kit", [1.0]), make_series("kit", [2.0], attempt=2)
    warm = make_series("kit", [9.0], warm_up=True)
    trials = (*warm.trials, *first.trials, *again.trials)
    block = replace(make_block("first", [first]), trials=trials)
    kept = keep_block(make_kept(tmp_path, {}), block, [*warm.records, *first.records, *again.records])
    (series,) = read_kept(kept.folder).list_series(kept.blocks[0])
    assert series.turn_rates == [2.0]


def test_a_block_that_is_measured_again_counts_the_last_time(tmp_path):
    kept = make_kept(tmp_path, {"first": [make_series("kit", [1.0])], "second": [make_series()]})
    again = keep_block(kept, make_block("first", [make_series("kit", [2.0])]), [make_series().records[0]])
    assert [one.name for one in again.list_blocks()] == ["first", "second"]
    assert again.find("first").trials[0].rate == 2.0
    assert (again.find("third"), len(list(kept.folder.glob("*.json")))) == (None, 4)


def test_times_come_back_to_the_microsecond_and_closed_loops_have_no_due_time(tmp_path):
    series = make_series()
    kept = make_kept(tmp_path, {"first": [series]})
    (read,) = read_kept(kept.folder).list_series(kept.blocks[0])
    assert np.allclose(series.records[0].latency, read.records[0].latency, atol=2e-6)
    assert np.isnan(read.records[0].scheduled).all()
    assert read.records[0].answers[read.records[0].answer[0]] == series.records[0].answers[0]


def test_a_trial_without_a_request_has_no_rows(tmp_path):
    kept = keep_block(
        make_kept(tmp_path, {}), make_block("first", [make_series("kit", [0.0])]), [make_records([], ())]
    )
    assert [len(one) for one in read_kept(kept.folder).read_records(kept.blocks[0])] == [0]


def test_nothing_is_overwritten(tmp_path):
    file = tmp_path / "x.json"
    write_json(file, {})
    with pytest.raises(LoadTestError, match=r"x\.json is there already; results are never overwritten"):
        write_json(file, {})
    assert start_result("a", "a", {}, tmp_path).folder != start_result("a", "a", {}, tmp_path).folder


def test_a_folder_without_a_result_is_answered_with_the_latest(tmp_path):
    kept = make_kept(tmp_path, {})
    with pytest.raises(LoadTestError, match=rf"no result in .*the latest there: {kept.folder.name}"):
        read_kept(tmp_path / "elsewhere")


def test_another_schema_is_refused(tmp_path):
    kept = make_kept(tmp_path, {})
    file = kept.folder / EXPERIMENT_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 1}))
    with pytest.raises(LoadTestError, match="schema must be 2; measure again"):
        read_kept(kept.folder)


def test_results_are_found_by_kind_and_name(tmp_path):
    ladder = make_kept(tmp_path, {}, kind="ladder", name="ladder-bert")
    make_kept(tmp_path, {}, kind="peak", name="bert-peak")
    assert list_results(tmp_path, "ladder") == [ladder.folder]
    assert find_result("latest", tmp_path, name="ladder-bert") == ladder.folder
    assert find_result(ladder.folder.name, tmp_path) == find_result(str(ladder.folder), tmp_path)
    with pytest.raises(LoadTestError, match="no result of soak in"):
        find_result("latest", tmp_path, kind="soak")
    with pytest.raises(LoadTestError, match=r"nothing holds no result; the latest there are: .*bert-peak"):
        find_result("nothing", tmp_path)


def test_records_of_several_generators_become_one():
    first, second = (make_series("kit", [rate]).records[0] for rate in (10.0, 7.0))
    second = replace(second, answers=("another",))
    merged = merge_records([first, second])
    assert len(merged) == len(first) + len(second)
    assert np.all(np.diff(merged.begun) >= 0)
    assert sum(merged.answer == 1) == len(second)
