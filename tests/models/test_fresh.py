"""When an archive is built again, and what is kept where WEIGHTS is not given."""

from __future__ import annotations

import pytest
import torch
from torchvision.models import get_model

from handlers.definition import Origin
from models.build import build_archive, read_built
from models.errors import BuildError, DownloadError
from models.files import hash_user_files
from models.request import WeightsRequest
from tests.conftest import RANDOM, TINY_IMAGE, from_path, write_definition

AUTO = WeightsRequest(source="auto")
NOT_GIVEN = WeightsRequest(source="")


@pytest.fixture
def definition(tmp_path):
    return write_definition(tmp_path / "models", TINY_IMAGE)


@pytest.fixture
def public(tmp_path):
    """A definition that public weights fit: their own preset."""
    return write_definition(tmp_path / "models", {**TINY_IMAGE, "options": {"top_k": 3}})


@pytest.fixture
def user_file(tmp_path):
    (tmp_path / "user").mkdir()
    return write_weights(tmp_path / "user" / "best.pth", seed=1)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("models.tasks.image.fetch_checkpoint", _fail)
    monkeypatch.setattr("models.tasks.image.fetch_public", _fail)


def _fail(*_, **__):
    raise DownloadError("no internet")


def write_weights(path, *, seed):
    torch.manual_seed(seed)
    torch.save(get_model("resnet18", num_classes=2).state_dict(), path)
    (path.parent / "labels.txt").write_text("cat\ndog\n")
    return path


def test_what_was_asked_for_is_kept_and_what_changes_is_built_again(tmp_path, definition, user_file):
    def build(weights, what=definition):
        built = build_archive(what, weights, store=tmp_path)
        return built, read_built(tmp_path / "tiny_image.mar")

    built, first = build(from_path(user_file))
    assert built
    assert first.definition.weights.startswith("user (best.pth")
    assert not build(from_path(user_file))[0]
    assert not build(NOT_GIVEN)[0]
    changed = write_definition(tmp_path / "models", {**TINY_IMAGE, "batch_sizes": [1, 2]})
    built, second = build(NOT_GIVEN, changed)
    assert built
    assert second.definition.weights == first.definition.weights
    (tmp_path / "other").mkdir()
    other = write_weights(tmp_path / "other" / "best.pth", seed=2)
    built, third = build(from_path(other), changed)
    assert built
    assert third.archive_id != second.archive_id
    other.unlink()
    assert not build(NOT_GIVEN, changed)[0]
    again = write_definition(tmp_path / "models", TINY_IMAGE)
    with pytest.raises(BuildError, match="which is not there"):
        build(NOT_GIVEN, again)


def test_random_for_want_of_internet_is_built_again_when_it_is_back(tmp_path, public, offline, monkeypatch):
    build_archive(public, NOT_GIVEN, store=tmp_path)
    packed = read_built(tmp_path / "tiny_image.mar").definition
    assert packed.origin == Origin(source="auto", path="", files="")
    assert packed.weights.startswith("random")
    assert not build_archive(public, AUTO, store=tmp_path)
    monkeypatch.setattr("models.tasks.image.fetch_public", lambda definition: None)
    checkpoint = tmp_path / "net.pth"
    torch.save(get_model("resnet18", num_classes=1000).state_dict(), checkpoint)
    monkeypatch.setattr("models.tasks.image.fetch_checkpoint", lambda url, sha256: checkpoint)
    assert build_archive(public, AUTO, store=tmp_path)
    assert read_built(tmp_path / "tiny_image.mar").definition.weights.startswith("pretrained")


def test_random_by_choice_asks_nobody(tmp_path, definition, offline, monkeypatch):
    build_archive(definition, RANDOM, store=tmp_path)
    monkeypatch.setattr(
        "models.tasks.image.fetch_public", lambda definition: pytest.fail("asked the internet")
    )
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
