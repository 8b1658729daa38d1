"""Rows are kept as they were seen, come back so, and those of several generators become one."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pandas as pd
import pytest

from loadtest import rows as rows_module
from loadtest.rows import KINDS, NO_ANSWER, find_good, make_rows, merge_rows, read_rows, write_rows

CLOSED = (0, math.nan, 0.0, 0.25, 200, 0, "")
ODD = ['code=503, "busy"', "", "a\nb", "a\rb", "NA", "nan", "null", "''", ' "', "ümlaut – 日本", "1.5", "a,b"]


def read_answers(file):
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "001-x.requests.csv.gz"


def test_windows_come_back_as_they_were(file):
    first = make_rows([CLOSED, (1, 0.5, 0.123456, 1.5, 503, NO_ANSWER, "code=503"), (2, 1, 1, 2, 0, 1, "")])
    second = make_rows([(3, -1.0, -0.5, 0.75, 200, 0, "")])
    write_rows(file, [(first, ["one", "two\nlines"]), (second, ["drei – ü"])])
    read = read_rows(file, 2)
    moved = second.assign(answer=2)
    for wanted, found in zip((first, moved), read, strict=True):
        pd.testing.assert_frame_equal(found.reset_index(drop=True), wanted)
    answers = read_answers(file.with_name("001-x.answers.jsonl.gz"))
    assert answers == ["one", "two\nlines", "drei – ü"]
    assert np.isnan(read[0]["due"]).tolist() == [True, False, False]
    head, line, *_ = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert (head.split(","), line) == (["window", *KINDS], "0,0,,0.000000,0.250000,200,0,")


def test_errors_come_back_whatever_they_hold(file):
    for texts in (ODD, ["", ""], ["7"]):
        write_rows(file, [(make_rows([(0, math.nan, 0, 1, 0, NO_ANSWER, text) for text in texts]), [])])
        assert read_rows(file, 1)[0]["error"].tolist() == texts


def test_a_window_without_a_request_has_no_rows(file):
    write_rows(file, [(make_rows([]), []), (make_rows([CLOSED]), ["a"]), (make_rows([]), [])])
    read = read_rows(file, 3)
    assert [len(one) for one in read] == [0, 1, 0]
    assert all(one.dtypes.tolist() == make_rows([]).dtypes.tolist() for one in read)
    write_rows(file, [])
    assert read_rows(file, 0) == []


def test_rows_of_several_generators_are_in_the_order_of_their_begin_with_their_own_answers():
    first = make_rows([(0, 2.0, 2.0, 2.1, 200, 0, ""), (1, 0.0, 5.0, 5.1, 200, 1, "")])
    second = make_rows([(2, math.nan, 1.0, 1.1, 200, 0, ""), (3, 3.0, 3.0, 3.1, 0, NO_ANSWER, "gone")])
    rows, answers = merge_rows([(first, ["a", "b"]), (second, ["c"])])
    assert rows["payload"].tolist() == [1, 2, 0, 3]
    assert [None if n == NO_ANSWER else answers[n] for n in rows["answer"]] == ["b", "c", "a", None]
    assert rows.index.tolist() == [0, 1, 2, 3]
    assert [len(part) for part in merge_rows([])] == [0, 0]


def test_an_open_loop_counts_from_when_a_request_was_due_and_good_is_2xx_and_whole():
    """The generator was 0.4 s late: that is the waiting person's time too."""
    rows = make_rows([(0, 1.0, 1.4, 1.5, 200, 0, ""), (0, math.nan, 1.4, 1.5, 200, 0, "")])
    assert rows_module.find_latency(rows) == pytest.approx([0.5, 0.1])
    assert rows_module.find_begun(rows).tolist() == [1.0, 1.4]
    assert rows_module.cut_window(rows, 1.0, 1.4)["due"].tolist() == [1.0]
    answered = [(200, ""), (299, ""), (199, ""), (300, ""), (503, ""), (0, "gone"), (200, "cut off")]
    rows = make_rows([(0, math.nan, 0, 1, status, 0, error) for status, error in answered])
    assert find_good(rows).tolist() == [True, True, *[False] * 5]
