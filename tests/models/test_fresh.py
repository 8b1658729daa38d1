"""When an archive is built again, and what is kept where WEIGHTS is not given."""

from __future__ import annotations

import pytest
import torch
from torchvision.models import get_model

from models import fresh
from models.build import build_archive, read_archive_definition
from models.errors import BuildError, DownloadError
from models.files import hash_user_files
from models.request import WeightsRequest
from tests.conftest import RANDOM, TINY_IMAGE, write_definition

AUTO = WeightsRequest(source="auto")
NOT_GIVEN = WeightsRequest(source="")


@pytest.fixture
def definition(tmp_path):
    return write_definition(tmp_path / "models", TINY_IMAGE)


@pytest.fixture
def public(tmp_path):
    """A definition that public weights fit: their own preset."""
    return write_definition(tmp_path / "models", {**TINY_IMAGE, "model": {"top_k": 3}})


@pytest.fixture
def user_file(tmp_path):
    (tmp_path / "user").mkdir()
    return write_weights(tmp_path / "user" / "best.pth", seed=1)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("models.kinds.image.fetch_checkpoint", _fail)
    monkeypatch.setattr(fresh, "fetch_pretrained", _fail)


def _fail(*_, **__):
    raise DownloadError("no internet")


def write_weights(path, *, seed):
    torch.manual_seed(seed)
    torch.save(get_model("resnet18", num_classes=2).state_dict(), path)
    (path.parent / "labels.txt").write_text("cat\ndog\n")
    return path


def from_path(path):
    return WeightsRequest(source="path", path=path)


def read_id(tmp_path):
    return read_archive_definition(tmp_path / "tiny_image.mar")["id"]


def test_asking_for_other_weights_builds_again(tmp_path, definition, user_file):
    build_archive(definition, from_path(user_file), store=tmp_path)
    first = read_id(tmp_path)
    assert not build_archive(definition, from_path(user_file), store=tmp_path)
    (tmp_path / "other").mkdir()
    other = write_weights(tmp_path / "other" / "best.pth", seed=2)
    assert build_archive(definition, from_path(other), store=tmp_path)
    assert read_id(tmp_path) != first


def test_without_weights_what_was_asked_for_before_is_kept(tmp_path, definition, user_file, capsys):
    build_archive(definition, from_path(user_file), store=tmp_path)
    assert not build_archive(definition, NOT_GIVEN, store=tmp_path)
    said = capsys.readouterr().out
    assert "up to date (weights: user (best.pth" in said
    assert f"WEIGHTS is not given: kept as WEIGHTS={user_file} built it" in said
    user_file.unlink()
    assert not build_archive(definition, NOT_GIVEN, store=tmp_path)


def test_without_weights_a_changed_definition_is_built_from_the_same_path(tmp_path, definition, user_file):
    build_archive(definition, from_path(user_file), store=tmp_path)
    changed = write_definition(tmp_path / "models", {**TINY_IMAGE, "batch_sizes": [1, 2]})
    assert build_archive(changed, NOT_GIVEN, store=tmp_path)
    assert read_archive_definition(tmp_path / "tiny_image.mar")["weights"].startswith("user (best.pth")


def test_a_path_that_is_gone_when_it_is_needed_is_named(tmp_path, definition, user_file):
    build_archive(definition, from_path(user_file), store=tmp_path)
    user_file.unlink()
    changed = write_definition(tmp_path / "models", {**TINY_IMAGE, "batch_sizes": [1, 2]})
    with pytest.raises(BuildError, match=r"best\.pth as before, which is gone; give WEIGHTS=tiny_image="):
        build_archive(changed, NOT_GIVEN, store=tmp_path)


def test_without_weights_and_archive_auto_is_meant(tmp_path, public, offline):
    build_archive(public, NOT_GIVEN, store=tmp_path)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    assert packed["request"] == {"source": "auto", "path": "", "files": ""}
    assert packed["weights"].startswith("random")


def test_random_for_want_of_internet_is_built_again_when_it_is_back(
    tmp_path, public, offline, monkeypatch, capsys
):
    build_archive(public, AUTO, store=tmp_path)
    assert not build_archive(public, AUTO, store=tmp_path)
    assert "pretrained weights still cannot be had: no internet" in capsys.readouterr().out
    monkeypatch.setattr(fresh, "fetch_pretrained", lambda definition: None)
    checkpoint = tmp_path / "net.pth"
    torch.save(get_model("resnet18", num_classes=1000).state_dict(), checkpoint)
    monkeypatch.setattr("models.kinds.image.fetch_checkpoint", lambda url, sha256: checkpoint)
    assert build_archive(public, AUTO, store=tmp_path)
    assert read_archive_definition(tmp_path / "tiny_image.mar")["weights"].startswith("pretrained")


def test_random_by_choice_asks_nobody(tmp_path, definition, offline, monkeypatch):
    build_archive(definition, RANDOM, store=tmp_path)
    monkeypatch.setattr(fresh, "fetch_pretrained", lambda definition: pytest.fail("asked the internet"))
    assert not build_archive(definition, RANDOM, store=tmp_path)
    assert not build_archive(definition, NOT_GIVEN, store=tmp_path)


def test_only_files_that_are_read_count(user_file):
    before = hash_user_files(user_file)
    (user_file.parent / "log.json").write_text("{}")
    (user_file.parent / "notes.txt").write_text("x")
    assert hash_user_files(user_file) == before
    (user_file.parent / "labels.txt").rename(user_file.parent / "labels.json")
    renamed = hash_user_files(user_file)
    assert renamed != before
    (user_file.parent / "config.json").write_text("{}")
    assert hash_user_files(user_file) != renamed


def test_what_a_build_can_need_is_the_cpus_and_the_engines_programs(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : sse2 avx2 amx_int8")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fresh.read_means(cpuinfo) == ["amx_int8", "avx2"]
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    assert fresh.read_means(cpuinfo) == ["amx_int8", "avx2", "g++"]
