"""Work folders: private, gone afterwards, and swept when a build was killed."""

from __future__ import annotations

import pytest

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
