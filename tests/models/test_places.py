"""Archives and timings go only where nothing of anybody else's is lost."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from models.__main__ import main
from models.build import build_archive
from models.errors import InputError
from models.places import check_store
from models.workspace import open_workspace
from tests.conftest import RANDOM, TINY_IMAGE, write_definition


def pack(file: Path, member: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, "{}")


def test_a_folder_with_other_things_gets_no_archives(tmp_path: Path) -> None:
    for name in ("environment", "hosts", "passwd", "shells"):
        (tmp_path / name).touch()
    assert main(["build", "MODELS=resnet50", "WEIGHTS=random", f"MODEL_STORE={tmp_path}"]) == 2
    assert len(list(tmp_path.iterdir())) == 4


def test_new_empty_and_own_stores_are_taken(tmp_path: Path) -> None:
    check_store(tmp_path / "new", ["bert"])
    (tmp_path / ".gitkeep").touch()
    check_store(tmp_path, ["bert"])
    pack(tmp_path / "bert.mar", "definition.json")
    (tmp_path / "resnet50.1234.part").touch()
    check_store(tmp_path, ["bert"])


def test_an_archive_of_others_is_not_overwritten(tmp_path: Path) -> None:
    pack(tmp_path / "bert.mar", "model.pth")
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}/bert.mar was not built by this kit")):
        check_store(tmp_path, ["bert"])
    check_store(tmp_path, ["resnet50"])  # beside it is fine


def test_a_damaged_archive_may_be_built_again(tmp_path: Path) -> None:
    (tmp_path / "bert.mar").write_bytes(b"rubbish")
    check_store(tmp_path, ["bert"])


def test_a_dead_builds_folder_goes_and_a_live_ones_stays(tmp_path):
    (tmp_path / "bert-dead").mkdir()
    (tmp_path / "bert-dead" / "model.safetensors").write_bytes(b"x")
    with open_workspace(tmp_path, "bert") as live, open_workspace(tmp_path, "bert") as other:
        assert sorted(tmp_path.iterdir()) == sorted([live, other])
    assert not list(tmp_path.iterdir())


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    definition = write_definition(tmp_path / "models", TINY_IMAGE)
    monkeypatch.setattr("models.build.pack_archive", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_archive(definition, RANDOM, store=tmp_path / "store", workspaces=tmp_path / "work")
    assert not list((tmp_path / "work").iterdir())
    assert not list((tmp_path / "store").iterdir())
