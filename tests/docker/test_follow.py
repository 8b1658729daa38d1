"""A log is followed through its absence, half lines and renaming."""

from __future__ import annotations

import pytest

from docker.follow import Follower


@pytest.fixture
def log(tmp_path):
    return tmp_path / "a.log"


def test_only_what_is_new_comes(log):
    follower = Follower(log)
    assert follower.read_lines() == []
    log.write_text("one\n")
    assert follower.read_lines() == ["one"]
    assert follower.read_lines() == []


def test_half_a_line_waits_for_its_end(log):
    follower = Follower(log)
    with log.open("w") as file:
        for text, lines in (("on", []), ("e\ntw", ["one"]), ("o\n", ["two"])):
            file.write(text)
            file.flush()
            assert follower.read_lines() == lines


def test_a_renamed_log_is_read_to_its_end_before_the_new_one(log):
    follower = Follower(log)
    log.write_text("one\n")
    follower.read_lines()
    with log.open("a") as file:
        file.write("two\n")
    log.rename(log.with_suffix(".1"))
    log.write_text("three\n")
    assert follower.read_lines() == ["two", "three"]
    log.rename(log.with_suffix(".2"))
    assert follower.read_lines() == []
    log.write_text("four\n")
    assert follower.read_lines() == ["four"]


def test_what_was_there_before_can_be_left_out(log):
    log.write_text("old\nhalf")
    follower = Follower(log)
    follower.skip()
    with log.open("a") as file:
        file.write(" a line\nnew\n")
    assert follower.read_lines() == [" a line", "new"]


def test_a_log_that_was_emptied_is_read_from_its_beginning(log):
    follower = Follower(log)
    log.write_text("one, and long\n")
    follower.read_lines()
    log.write_text("two\n")
    assert follower.read_lines() == ["two"]
