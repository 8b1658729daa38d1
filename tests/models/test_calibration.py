"""The accuracy gate with real calibrations, good and planted bad: each takes a process of its own."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from handlers.shared.options import LoadOptions
from handlers.shared.state import LoadState
from handlers.shared.steps import build_graph
from models.build import build_archive, read_archive_definition
from models.classifiers import load_classifier
from models.errors import BuildError
from models.request import DataRequest
from models.synthetic import encode_member
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, write_definition
from tests.cpu import HAS_BF16, NARROW, needs_bf16
from tests.models.gates import with_int8


@pytest.mark.parametrize("raw", [TINY_IMAGE, TINY_TEXT], ids=["image", "text"])
def test_int8_is_calibrated_judged_and_packed(tmp_path, raw):
    definition = write_definition(tmp_path / "models", with_int8(raw, agreement=0.5))
    build_archive(definition, RANDOM, store=tmp_path)
    archive = tmp_path / f"{raw['name']}.mar"
    packed = read_archive_definition(archive)
    assert packed["refused"] == {}
    assert set(packed["accuracy"]) == {f"ipex {precision}" for precision in NARROW}
    assert packed["accuracy"]["ipex int8"]["calibration"] == "synthetic"
    assert packed["accuracy"]["ipex int8"]["agreement"] >= 0.5
    with zipfile.ZipFile(archive) as file:
        assert json.loads(file.read("int8.json"))


def draw_pictures(folder: Path, numbers: range) -> Path:
    folder.mkdir()
    for number in numbers:
        (folder / f"{number}.jpg").write_bytes(encode_member(number % 20, 200 + number))
    return folder


@needs_bf16
def test_a_calibration_that_ruins_every_observer_is_rescued_by_operators_in_bf16(tmp_path, capsys):
    # Black pictures: every scale is chosen for a network that sees nothing.
    folder = tmp_path / "black"
    folder.mkdir()
    for number in range(16):
        Image.new("RGB", (80, 80 + number)).save(folder / f"{number}.png")
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    data = DataRequest(calibration=folder, evaluation=draw_pictures(tmp_path / "pictures", range(40)))
    build_archive(definition, RANDOM, store=tmp_path, data=data)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    tried, figures = packed["tried"]["ipex int8"], packed["accuracy"]["ipex int8"]
    assert packed["refused"] == {}
    assert [one["recipe"] for one in tried[:3]] == ["histogram", "min-max", "percentile"]
    assert [one["reason"] is None for one in tried] == [False] * (len(tried) - 1) + [True]
    assert figures["recipe"] == tried[-1]["recipe"]
    assert figures["agreement_decided"] >= 0.9
    assert figures["calibration"] == "black"
    lines = capsys.readouterr().out.splitlines()
    (passed,) = [line for line in lines if ": passed; " in line]
    assert passed.startswith(f"  tiny_image ipex int8 by {figures['recipe']}: passed; ")
    recipe = load_int8(tmp_path, tmp_path / "tiny_image.mar").facts["recipe"]
    assert recipe["name"] == figures["recipe"]
    assert recipe["bf16_operators"] > 0


def load_int8(folder: Path, archive: Path) -> LoadState:
    """As a worker does, to the last step but the warm-up."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "unpacked")
    options = LoadOptions(precision="int8", engine="ipex", threads=None)
    state = LoadState(classifier=load_classifier(folder / "unpacked"), options=options)
    build_graph(state)
    return state


def test_where_no_recipe_passes_the_nearest_is_refused_with_its_figures(tmp_path, capsys):
    # More than all cannot agree: every recipe is tried.
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=1.01))
    own, judged = (draw_pictures(tmp_path / name, range(24)) for name in ("own", "pictures"))
    data = DataRequest(calibration=own, evaluation=judged)
    build_archive(definition, RANDOM, store=tmp_path, data=data)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    tried, figures = packed["tried"]["ipex int8"], packed["accuracy"]["ipex int8"]
    assert len(tried) == (6 if HAS_BF16 else 3)
    judged = [one for one in tried if one["time_ratio"] is not None]
    assert len(judged) >= (4 if HAS_BF16 else 3)
    assert all("at least 101.0% is needed" in one["reason"] for one in judged)
    assert all("at most 50% may be" in one["reason"] for one in tried if one not in judged)
    nearest = f"; so {figures['recipe']}, the nearest of {len(judged)} recipes"
    assert packed["refused"]["ipex int8"].endswith(nearest)
    with zipfile.ZipFile(tmp_path / "tiny_image.mar") as file:
        assert json.loads(file.read("int8.json"))["cpu-kit"]["name"] == figures["recipe"]
    lines = capsys.readouterr().out.splitlines()
    by = [line for line in lines if line.startswith("  tiny_image ipex int8 by ")]
    assert len(by) == len(tried)
    assert sum(line.endswith(" times the time of histogram") for line in by[1:]) == len(judged) - 1


def test_labels_that_the_model_does_not_have_are_a_clear_build_error(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    draw_pictures(folder / "holiday", range(8))
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    with pytest.raises(BuildError, match="the labels of photos must be classes of the model"):
        build_archive(definition, RANDOM, store=tmp_path, data=DataRequest(evaluation=folder))


def test_a_broken_input_is_a_clear_build_error(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.jpg").write_bytes(b"no picture")
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    with pytest.raises(BuildError, match=r"the precisions of tiny_image cannot be judged: the body is text"):
        build_archive(definition, RANDOM, store=tmp_path, data=DataRequest(calibration=folder))
    assert not Path(tmp_path / "tiny_image.mar").exists()
