"""Work folders: private, gone afterwards, and swept when a build was killed."""

from __future__ import annotations

import zipfile

import pytest

from models.archive import EPOCH, MANIFEST, rewrite_archive
from models.build import build_archive
from models.workspace import open_workspace
from tests.conftest import RANDOM, TINY_IMAGE, write_definition


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


def test_weights_join_the_archive_without_the_archivers_copies(tmp_path):
    with zipfile.ZipFile(tmp_path / "small.zip", "w") as small:
        small.writestr("z.py", "z")
        small.writestr(MANIFEST, "{}")
    (tmp_path / "weights").write_bytes(b"w" * 9)
    rewrite_archive(
        tmp_path / "small.zip", tmp_path / "out", added={"model.safetensors": tmp_path / "weights"}
    )
    with zipfile.ZipFile(tmp_path / "out") as archive:
        assert archive.namelist() == [*sorted([MANIFEST, "model.safetensors", "z.py"]), "SHA256SUMS"]
        assert archive.read("model.safetensors") == b"w" * 9
        assert {entry.date_time for entry in archive.infolist()} == {EPOCH}
