"""A folder of anybody else's is rejected before a byte is written; the kit's own is taken."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from config import folders
from config.errors import ConfigError
from config.folders import (
    MARKER,
    check_run_folder,
    claim_run_folder,
    hold_lock,
    name_draft,
    write_text_atomically,
)
from tests.plans import make_plan


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A folder of the system's, with a file that the kit would overwrite."""
    for name in ("environment", "hosts", "passwd", "shells"):
        (tmp_path / name).write_text(f"{name} of the system")
    return tmp_path


def test_a_folder_of_others_is_rejected_and_stays_as_it_is(etc: Path) -> None:
    before = snapshot(etc)
    with pytest.raises(ConfigError, match="holds environment, hosts, passwd and 1 more; nothing was written"):
        claim_run_folder(etc)
    assert snapshot(etc) == before


@pytest.mark.parametrize("name", ["logs", "health", "plan.json", "config.properties"])
def test_a_name_the_kit_uses_is_no_mark(tmp_path: Path, name: str) -> None:
    """`logs` would be renamed, and last year's removed."""
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=f"holds {name};"):
        claim_run_folder(tmp_path)


def test_a_new_folder_is_this_users_alone(tmp_path: Path) -> None:
    claim_run_folder(tmp_path / "a" / "run")
    assert (tmp_path / "a" / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "run" / MARKER).read_text().startswith("The TorchServe CPU kit")


@pytest.mark.parametrize("names", [(), ("lost+found",)])
def test_an_empty_folder_or_volume_is_taken(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    claim_run_folder(tmp_path)
    (tmp_path / "notes.txt").touch()
    claim_run_folder(tmp_path)  # again, with something of a person's


@pytest.mark.parametrize(
    ("name", "text"),
    [("plan.json", make_plan().to_json()), ("timings.json", '{"schema": 1, "settings": {}, "models": {}}')],
)
def test_a_run_directory_without_the_marker_is_known_by_its_files(tmp_path: Path, name, text) -> None:
    (tmp_path / name).write_text(text)
    claim_run_folder(tmp_path)
    assert (tmp_path / MARKER).exists()


def test_a_run_directory_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim_run_folder(tmp_path)
    other = os.geteuid() + 12345
    monkeypatch.setattr(folders.os, "geteuid", lambda: other)
    with pytest.raises(ConfigError, match=f"must be of the user who runs this, user {other}: "):
        check_run_folder(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match="RUN_DIR must be a folder: got the file"):
        claim_run_folder(tmp_path / "run")


def test_a_second_lock_is_rejected_and_the_first_is_freed(tmp_path: Path) -> None:
    expected = r"another start is under way in .*; wait for it, or `make stop`"
    with hold_lock(tmp_path), pytest.raises(ConfigError, match=expected), hold_lock(tmp_path):
        pass
    with hold_lock(tmp_path):
        pass


@pytest.mark.parametrize("call", ["exists", "iterdir"])
def test_a_folder_that_may_not_be_looked_into_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def reject(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, call, reject)
    with pytest.raises(ConfigError, match=r"RUN_DIR cannot be looked into: Permission denied: "):
        claim_run_folder(tmp_path)


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
