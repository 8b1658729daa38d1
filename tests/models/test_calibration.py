"""The accuracy gate with a real calibration that is planted bad."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from models.build import build_archive, read_built
from models.request import DataRequest
from models.synthetic import encode_member
from tests.conftest import RANDOM, TINY_IMAGE, with_int8, write_definition


def draw_images(folder: Path, numbers: range) -> Path:
    folder.mkdir()
    for number in numbers:
        (folder / f"{number}.jpg").write_bytes(encode_member(number % 20, 200 + number))
    return folder


def test_what_a_calibration_ruins_is_rejected_with_what_was_tried(tmp_path):
    # Black images: every scale is chosen for a network that sees nothing.
    folder = tmp_path / "black"
    folder.mkdir()
    for number in range(16):
        Image.new("RGB", (80, 80 + number)).save(folder / f"{number}.png")
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    data = DataRequest(calibration=folder, evaluation=draw_images(tmp_path / "images", range(40)))
    build_archive(definition, RANDOM, store=tmp_path, data=data)
    packed = read_built(tmp_path / "tiny_image.mar").definition.variants["ipex int8"]
    tried = packed.tried
    assert [one["recipe"] for one in tried] == ["histogram", "min-max"]
    assert all(one["reason"] for one in tried)
    assert "the nearest of 2 recipes" in packed.rejected
    assert packed.accuracy["calibration"] == "black"
