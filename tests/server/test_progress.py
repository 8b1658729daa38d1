"""Ticks are shown in place on a terminal, and seldom in a log."""

from __future__ import annotations

import io

from server.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_a_terminal_sees_seconds_in_place():
    stream = Terminal()
    progress = Progress(stream=stream)
    progress.tick("  1 s")
    progress.report("ready")
    assert stream.getvalue() == "\r\033[K  1 s\r\033[Kready\n"


def test_a_line_in_place_never_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    stream = Terminal()
    Progress(stream=stream).tick("123456789012345")
    assert stream.getvalue() == "\r\033[K123456789"


def test_a_file_gets_a_line_after_a_long_silence_only():
    clock = [0.0]
    stream = io.StringIO()
    progress = Progress(stream=stream, now=lambda: clock[0])
    for second in range(1, 46):
        clock[0] = second
        progress.tick(f"{second} s")
    assert stream.getvalue() == "20 s\n40 s\n"


def test_what_was_reported_breaks_the_silence():
    clock = [0.0]
    stream = io.StringIO()
    progress = Progress(stream=stream, now=lambda: clock[0])
    clock[0] = 15.0
    progress.report("ready")
    clock[0] = 30.0
    progress.tick("30 s")
    assert stream.getvalue() == "ready\n"
