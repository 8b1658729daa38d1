"""Results are kept whole, never overwritten, and come back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace

import pandas as pd
import pytest

from loadtest import results as module
from loadtest.errors import LoadTestError
from loadtest.load import Scenario, parse_scenario
from loadtest.results import EXPERIMENT_FILE, SCHEMA, find_result, list_results, plain, read_result
from loadtest.rows import make_rows
from tests.loadtest.making import keep, make_block, make_load, make_series


def same(one, other):
    """Equal in all, rows too."""
    assert replace(one, rows=()) == replace(other, rows=())
    for left, right in zip(one.rows, other.rows, strict=True):
        pd.testing.assert_frame_equal(left.reset_index(drop=True), right.reset_index(drop=True))


def test_a_result_is_whole_and_comes_back_equal(tmp_path):
    opened = make_series(
        "stock", [5.0], load=make_load(8.0, shares={"bert": 0.5}, limit_ms=250.0), lag_p99_ms=1.5,
        error_kinds={"code=503": 2}, errors=2, memory_mib={"bert 7": 512.0}, watched={"power": [1, None]},
        facts={"plan": {"a": [1]}, "described": ({"pid": 1},), "causes": ("gone",), "own_mib": (3,)},
    )  # fmt: skip
    idle = replace(make_series("idle", [0.0], cpu=None, p50_ms=None), rows=(make_rows([]),))
    series = [make_series("kit"), opened, make_series("kit", [3.0], load=make_load(users=8)), idle]
    rejected = {"first": {"int8": "needs IPEX"}}
    asked = {"servers": ("a", "b"), "load": make_load(), "level": "60%"}
    kept = keep(tmp_path, {"first": series, "x-2": [opened]}, asked=asked, rejected=rejected)
    ends = ("json", "requests.csv.gz", "answers.jsonl.gz")
    parts = {f"{stem}.{end}" for stem in ("001-first", "002-x-2") for end in ends}
    assert {file.name for file in kept.folder.iterdir()} == {EXPERIMENT_FILE, *parts}
    read = read_result(kept.folder)
    assert read == replace(kept, host=plain(kept.host))
    assert read.asked == plain(asked)
    assert read.list_blocks() == ["first", "x-2"]
    block = read.find_block("first")
    assert replace(block, series=()) == make_block("first", [], rejected=rejected["first"])
    for found, wanted in zip(block.series, series, strict=True):
        # Answers are numbered through a block: each window here has one.
        rows = tuple(one.assign(answer=0 * one["answer"]) for one in found.rows)
        same(replace(found, rows=rows), wanted)
    assert read.find_block("firs") is read.find_block("2") is None


def test_a_block_tells_its_servers_and_their_ratio(tmp_path):
    kept = keep(tmp_path, {"pair": [make_series("a", [10.0, 5.0]), make_series("b", [20.0, 10.0])]})
    block = kept.find_block("pair")
    ratio = block.ratio("b", "a")
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2, 2, 2))
    assert (block.find("a").server, block.find("c"), block.find("a").requests) == ("a", None, 150)
    with pytest.raises(LoadTestError, match="c is not in block pair"):
        block.ratio("a", "c")


def test_plain_values_make_the_same_again():
    raw = {"model": "bert", "payloads": "texts", "rate": [5, 2.5, "60%"]}
    scenario = parse_scenario(raw, name="x", source="x")
    assert module.structure(plain(scenario), Scenario) == scenario
    closed = parse_scenario({"model": "bert", "payloads": "texts", "users": "auto"}, name="x", source="x")
    assert module.structure(plain(closed), Scenario) == closed
    assert "rows" not in plain(make_series())


def test_nothing_is_overwritten(tmp_path):
    file = tmp_path / "x.json"
    module.write_json(file, {"a": "ü"})
    with pytest.raises(LoadTestError, match=r"x\.json is there already; results are never overwritten"):
        module.write_json(file, {})
    assert json.loads(file.read_text(encoding="utf-8")) == {"a": "ü"}
    assert list(tmp_path.iterdir()) == [file]


def test_a_second_result_of_a_second_has_a_folder_of_its_own_and_is_the_latest(tmp_path, monkeypatch):
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
    monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda _: moment))
    folders = [module.start_result("loadtest", "a", {}, tmp_path).folder for _ in range(3)]
    stem = "2026-01-02T03-04-05Z-a"
    assert [one.name for one in folders] == [stem, f"{stem}-2", f"{stem}-3"]
    assert list_results(tmp_path) == folders
    assert find_result("latest", tmp_path) == folders[-1]


def test_another_schema_or_no_result_is_rejected_and_not_listed(tmp_path):
    kept = keep(tmp_path, {})
    file = kept.folder / EXPERIMENT_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": SCHEMA - 1}))
    with pytest.raises(LoadTestError, match=rf"schema must be {SCHEMA}; measure again"):
        read_result(kept.folder)
    assert list_results(tmp_path) == []
    file.write_text("{")
    for folder in (kept.folder, tmp_path / "elsewhere"):
        with pytest.raises(LoadTestError, match=r"experiment\.json must hold a result"):
            read_result(folder)
    assert list_results(tmp_path) == []


def test_results_are_found_by_latest_name_or_path(tmp_path):
    steps = keep(tmp_path, {}, kind="steps", name="steps-bert")
    other = keep(tmp_path, {}, name="bert-open")
    assert list_results(tmp_path, "steps-bert") == [steps.folder]
    assert find_result("latest", tmp_path, name="steps-bert") == steps.folder
    assert find_result("latest", tmp_path) in (steps.folder, other.folder)
    assert (
        find_result(steps.folder.name, tmp_path) == find_result(str(steps.folder), tmp_path) == steps.folder
    )
    with pytest.raises(LoadTestError, match=r"no result of soak in .*; measure first"):
        find_result("latest", tmp_path, name="soak")
    with pytest.raises(LoadTestError, match="no result of anything in"):
        find_result("latest", tmp_path / "empty")
    for asked in ("nothing", str(tmp_path), ""):
        with pytest.raises(LoadTestError, match=r"holds no result; the latest there are: .*bert-open"):
            find_result(asked, tmp_path)
