"""Results are kept whole, never overwritten, and come back as they were."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from loadtest.compare import compare_results
from loadtest.errors import LoadTestError
from loadtest.kept import make_folder, read_summary, write_result
from loadtest.records import merge_records, read_records
from tests.loadtest.summaries import keep_virtual, make_records, make_scenario


def test_a_result_holds_everything_and_comes_back(tmp_path):
    folder, summary = keep_virtual(tmp_path, make_scenario())
    names = {file.name for file in folder.iterdir()}
    kept = {"host", "scenario", "verify", "expected", "payloads", "summary"}
    assert names == {f"{name}.json" for name in kept} | {"requests.csv.gz", "answers.jsonl.gz"}
    assert read_summary(folder) == summary
    assert json.loads((folder / "host.json").read_text())["versions"]["torch"]
    head = gzip.decompress((folder / "requests.csv.gz").read_bytes()).decode().splitlines()[0]
    assert head == "step,repeat,payload,scheduled_s,sent_s,ended_s,status,answer,error"


def test_raw_records_come_back_to_the_microsecond(tmp_path):
    scenario = make_scenario()
    folder, _ = keep_virtual(tmp_path, scenario)
    written, read = make_records(scenario), read_records(folder / "requests.csv.gz")[0, 0]
    assert np.allclose(written.latency, read.latency, atol=2e-6)
    assert read.answers[read.answer[0]] == written.answers[0]


def test_closed_loop_records_have_no_due_time(tmp_path):
    folder, _ = keep_virtual(tmp_path, make_scenario("closed"), level=16)
    assert np.isnan(read_records(folder / "requests.csv.gz")[0, 1].scheduled).all()


def test_a_result_is_never_overwritten(tmp_path):
    folder, summary = keep_virtual(tmp_path, make_scenario())
    with pytest.raises(LoadTestError, match="holds a result already; results are never overwritten"):
        write_result(folder, summary, records={}, expected=None, payloads=[], host={}, plan=None)
    assert make_folder("bert-open", tmp_path) != make_folder("bert-open", tmp_path)


def test_a_folder_without_a_result_is_answered_with_the_latest(tmp_path):
    folder, _ = keep_virtual(tmp_path, make_scenario())
    with pytest.raises(LoadTestError, match=rf"no result in .*the latest there: {folder.name}"):
        read_summary(tmp_path / "elsewhere")


def test_records_of_several_generators_become_one():
    first, second = (make_records(make_scenario(), seed=seed) for seed in (1, 2))
    second = replace(second, answers=("another",))
    merged = merge_records([first, second])
    assert len(merged) == len(first) + len(second)
    assert np.all(np.diff(merged.begun) >= 0)
    assert sum(merged.answer == 1) == len(second)


def test_two_results_are_compared(tmp_path):
    scenario = make_scenario("closed")
    a, _ = keep_virtual(tmp_path, scenario, level=16, service_s=0.05)
    b, _ = keep_virtual(tmp_path, scenario, level=16, service_s=0.06)
    worse, better = compare_results(a, b, bound=0.05)[0], compare_results(b, a, bound=0.05)[0]
    assert (worse.regression, better.regression) == (True, False)
    assert worse.ratio.value == pytest.approx(5 / 6, rel=0.02)
    assert "did not take turns" in worse.notes[0]


def test_latencies_of_open_loops_are_compared_the_other_way_round(tmp_path):
    scenario = make_scenario()
    a, _ = keep_virtual(tmp_path, scenario, service_s=0.05)
    b, _ = keep_virtual(tmp_path, scenario, service_s=0.06)
    verdict = compare_results(a, b, bound=0.05)[0]
    assert (verdict.unit, verdict.regression) == ("ms", True)
    assert compare_results(a, a, bound=0.05)[0].regression is False


def test_invalid_or_different_results_are_not_compared(tmp_path):
    good, _ = keep_virtual(tmp_path, make_scenario())
    bad, _ = keep_virtual(tmp_path, make_scenario(), cores=0.99)
    closed, _ = keep_virtual(tmp_path, make_scenario("closed"), level=16)
    with pytest.raises(LoadTestError, match=r"is INVALID .*; only valid results are compared"):
        compare_results(good, bad, bound=0.05)
    with pytest.raises(LoadTestError, match="A and B must have the same arrival"):
        compare_results(good, closed, bound=0.05)
