"""A long step says what it does and for how long; a terminal's line goes away, a log gets few lines."""

from __future__ import annotations

import io

import pytest

from models.progress import doing, say, tell


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes only while something waits; the step ends at `end`."""

    def __init__(self, end: float) -> None:
        self.seconds, self.end = 0.0, end

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return self.seconds > self.end

    def now(self) -> float:
        return self.seconds


def show(stream: io.StringIO, seconds: float) -> str:
    clock = Clock(seconds)
    tell("bert: packing", stream, clock.wait, clock.now)
    return stream.getvalue()


def test_a_terminal_counts_in_place_and_is_clean_afterwards() -> None:
    assert show(Terminal(), 2) == "\r\033[K  bert: packing: 1 s\r\033[K  bert: packing: 2 s\r\033[K"


def test_a_log_gets_a_line_every_20_seconds() -> None:
    lines = show(io.StringIO(), 80).splitlines()
    assert lines == [f"  bert: packing: {seconds} s so far" for seconds in (20, 40, 60, 80)]


def test_a_short_step_leaves_no_trace_in_a_log() -> None:
    assert show(io.StringIO(), 19) == ""


def test_the_line_is_gone_when_the_block_ends_or_fails() -> None:
    stream = Terminal()
    with pytest.raises(ValueError, match="planted"), doing("bert: packing", stream):
        raise ValueError("planted")
    assert stream.getvalue() == "\r\033[K"


def test_what_is_said_meanwhile_takes_the_place_of_the_line_that_counts() -> None:
    stream, log = Terminal(), io.StringIO()
    for out in (stream, log):
        say("first use", out)
    assert (stream.getvalue(), log.getvalue()) == ("\r\033[Kfirst use\n", "first use\n")
