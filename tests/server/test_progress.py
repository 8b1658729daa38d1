"""Ticks are for terminals only."""

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


def test_a_file_gets_lines_only():
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.tick("  1 s")
    progress.report("ready")
    assert stream.getvalue() == "ready\n"
