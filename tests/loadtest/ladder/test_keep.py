"""Finished blocks are kept and never overwritten; a ladder is only resumed where everything is as it was."""

from __future__ import annotations

import copy

import pytest

from loadtest.errors import LoadTestError
from loadtest.ladder.keep import (
    HEADER_FILE,
    check_same,
    find_folder,
    keep_block,
    list_ladders,
    read_blocks,
    read_header,
)
from tests.loadtest.ladder.results import INPUTS, make_block, make_header, write_ladder


def test_a_header_comes_back_as_it_was(tmp_path):
    header = make_header()
    assert read_header(write_ladder(tmp_path, header, blocks=0)) == header


def test_finished_blocks_are_known_and_never_overwritten(tmp_path):
    header = make_header()
    folder = write_ladder(tmp_path, header, blocks=2)
    first = (folder / "block-02.json").read_bytes()
    keep_block(folder, 2, {**make_block(header, 2), "seconds": 7.0})
    assert (folder / "block-02.json").read_bytes() == first
    assert {number: block["seconds"] for number, block in read_blocks(folder, header).items()} == {
        1: 100.0,
        2: 7.0,
    }


def test_a_block_that_was_cut_off_while_it_was_written_is_not_there(tmp_path):
    header = make_header()
    folder = write_ladder(tmp_path, header, blocks=1)
    (folder / "block-02.json.part").write_text('{"sides": [')
    assert set(read_blocks(folder, header)) == {1}


def test_the_same_inputs_may_go_on(tmp_path):
    header = make_header()
    check_same(header, copy.deepcopy(INPUTS), tmp_path)


def test_other_inputs_are_refused_with_all_that_differs(tmp_path):
    now = copy.deepcopy(INPUTS)
    now["host"]["usable_cores"] = 4
    now["archive"] = "xyz"
    now["arguments"]["top"] = "--precision bf16; 64 users"
    with pytest.raises(LoadTestError) as refused:
        check_same(make_header(), now, tmp_path / "a-ladder")
    assert str(refused.value) == (
        "a-ladder can only be resumed where everything is as it was:\n"
        "  host.usable_cores: was 2, is 4\n"
        '  archive: was "abc", is "xyz"\n'
        '  arguments.top: was "--precision int8; 64 users", is "--precision bf16; 64 users"\n'
        "start a new one: make ladder without RESUME"
    )


def test_the_latest_of_a_model_is_found(tmp_path):
    first = write_ladder(tmp_path, make_header("bert"), blocks=0)
    second = write_ladder(tmp_path, make_header("resnet50"), blocks=0)
    assert find_folder("latest", "bert", tmp_path) == first
    assert find_folder("latest", "", tmp_path) in (first, second)
    assert find_folder(second.name, "", tmp_path) == second
    assert set(list_ladders(tmp_path)) == {first, second}


def test_without_any_ladder_the_way_to_one_is_told(tmp_path):
    with pytest.raises(LoadTestError, match=r"no ladder of bert in .*; run `make ladder` first"):
        find_folder("latest", "bert", tmp_path)


def test_a_folder_without_a_ladder_is_refused_with_those_there_are(tmp_path):
    (there := tmp_path / "2026-01-01T00-00-00-ladder-bert").mkdir()
    (there / HEADER_FILE).write_text("{}")
    (tmp_path / "2026-report").mkdir()
    for asked in ("2026-report", "nowhere"):
        with pytest.raises(LoadTestError, match=f"{asked} holds no ladder; there are: {there.name}"):
            find_folder(asked, "bert", tmp_path)
