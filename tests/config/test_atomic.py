"""A file is there whole or as it was before, and never for others to read that shall not."""

from __future__ import annotations

import stat

import pytest

from config.folders import name_draft, write_text_atomically


def test_what_a_killed_writer_left_is_written_over(tmp_path):
    file = tmp_path / "plan.json"
    name_draft(file).write_text("half of a longer text")
    name_draft(file).chmod(0o644)
    write_text_atomically(file, "whole", mode=0o600)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("plan.json", "whole")]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_was_there_stays_when_it_cannot_be_written(tmp_path):
    file = tmp_path / "plan.json"
    write_text_atomically(file, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(file, "a lone surrogate: \ud800")
    assert file.read_text() == "before"
