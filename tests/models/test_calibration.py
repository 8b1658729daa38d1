"""The accuracy gate with a real calibration that is planted bad."""

from __future__ import annotations

import zipfile
from pathlib import Path

from PIL import Image

from handlers.backends.loader import LoadState
from handlers.shared.options import LoadOptions
from handlers.shared.steps import build_graph
from models.build import build_archive, read_archive_definition
from models.classifiers import load_classifier
from models.request import DataRequest
from models.synthetic import encode_member
from tests.conftest import RANDOM, TINY_IMAGE, with_int8, write_definition
from tests.cpu import needs_bf16


def draw_pictures(folder: Path, numbers: range) -> Path:
    folder.mkdir()
    for number in numbers:
        (folder / f"{number}.jpg").write_bytes(encode_member(number % 20, 200 + number))
    return folder


@needs_bf16
def test_a_calibration_that_ruins_every_observer_is_rescued_by_operators_in_bf16(tmp_path):
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
    recipe = load_int8(tmp_path, tmp_path / "tiny_image.mar").facts["recipe"]
    assert recipe["name"] == figures["recipe"]
    assert recipe["bf16_operators"] > 0


def load_int8(folder: Path, archive: Path) -> LoadState:
    """As a worker does, to the last step but the warm-up."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "unpacked")
    options = LoadOptions(precision="int8", backend="ipex", threads=None)
    state = LoadState(classifier=load_classifier(folder / "unpacked"), options=options)
    build_graph(state)
    return state
