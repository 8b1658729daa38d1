"""Each maker makes what it says: judged by the parsers that a server would use."""

from __future__ import annotations

import io
import json
from urllib.parse import parse_qsl

import pytest
from PIL import Image, UnidentifiedImageError, features

from loadtest.experiments.harm import bodies
from loadtest.experiments.harm.seeds import make_interlaced_png, make_seeds


def open_image(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def count_scans(jpeg: bytes) -> int:
    """Start-of-scan markers; within a scan no other byte 0xFF is followed by 0xDA."""
    return jpeg.count(b"\xff\xda")


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_jpeg_has_as_many_scans_as_asked_for_and_decodes(count):
    jpeg = bodies.make_scans(64, count)
    assert count_scans(jpeg) == 1 + count
    image = open_image(jpeg)
    assert (image.format, image.size, image.info["progressive"]) == ("JPEG", (64, 64), 1)


def test_a_side_that_is_no_block_is_refused():
    with pytest.raises(ValueError, match="side must be a multiple of 8: got 60"):
        bodies.make_scans(60, 1)


def test_the_heavy_jpeg_is_light_to_send():
    assert len(bodies.make_scans(10_000, 24_000)) < 4_000_000


def test_iptc_says_less_than_it_holds():
    data = bodies.make_iptc(200)
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == ("IPTC", (16, 16))
        image.load()
        assert image.im.size == (200, 200)


def test_qoi_is_what_pillow_decodes_in_python():
    image = open_image(bodies.make_qoi(20))
    assert (image.format, image.size) == ("QOI", (20, 20))
    assert len(bodies.make_qoi(4090)) < bodies.MOST_BYTES


def test_noise_weighs_what_its_pixels_do():
    assert 8_000_000 < len(bodies.make_noise_png(1650)) < 8_400_000
    assert open_image(bodies.make_noise_png(10, mode="RGBA")).mode == "RGBA"


def test_a_plain_png_weighs_nothing():
    data = bodies.make_plain_png(500, mode="RGBA")
    assert len(data) < 5_000
    assert open_image(data).size == (500, 500)


def test_a_form_has_a_field_for_every_two_bytes():
    assert len(parse_qsl(bodies.make_form(1000).decode(), keep_blank_values=True)) == 500


def test_a_multipart_form_has_parts_to_the_brim():
    data = bodies.make_parts(10_000)
    assert 9_800 < len(data) <= 10_000
    assert data.count(b"Content-Disposition") == data.count(f"--{bodies.BOUNDARY}\r\n".encode()) > 100
    assert data.endswith(f"--{bodies.BOUNDARY}--\r\n".encode())


def test_wide_json_is_a_list_of_empty_lists():
    parsed = json.loads(bodies.make_wide_json(3000))
    assert len(parsed) == 999
    assert not any(parsed)
    assert len(bodies.make_wide_json(bodies.MOST_BYTES)) <= bodies.MOST_BYTES


def test_long_texts_are_as_many_and_as_long_as_allowed():
    texts = json.loads(bodies.make_long_texts())["text"]
    assert [len(text.split()) for text in texts] == [510] * 8


def test_a_repaired_png_decodes_and_a_changed_one_does_not():
    good = make_interlaced_png(16)
    changed = good.replace(b"IEND\xae\x42\x60\x82", b"IEND\0\0\0\0")
    assert changed != good
    assert bodies.repair_png(changed) == good
    at = good.index(b"IHDR") + 11  # the least byte of the height
    broken = good[:at] + b"\x20" + good[at + 1 :]
    with pytest.raises(UnidentifiedImageError):
        open_image(broken)
    with Image.open(io.BytesIO(bodies.repair_png(broken))) as image:
        assert image.size == (16, 32)


def test_half_a_chunk_stays_as_it_is():
    good = make_interlaced_png(16)
    assert bodies.repair_png(good[:40]) == good[:40]


PICTURES = [one for one in make_seeds() if one.content_type.startswith("image/")]


@pytest.mark.parametrize("seed", PICTURES, ids=lambda one: one.name)
def test_every_picture_is_good_and_of_its_kind(seed):
    image = open_image(seed.body)
    assert f"image/{image.format.lower()}" == seed.content_type
    assert getattr(image, "n_frames", 1) == (
        2 if "animated" in seed.name or seed.name in ("mpo", "tiff-pages") else 1
    )


def test_the_pictures_are_of_every_accepted_format_and_many_modes():
    assert features.check("webp")
    images = [open_image(one.body) for one in PICTURES]
    assert {one.format for one in images} == {"JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF"}
    assert {"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"} <= {one.mode for one in images}
    assert {one.info.get("compression") for one in images if one.format == "TIFF"} == {
        "raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4",
    }  # fmt: skip


def test_seeds_have_names_of_their_own_and_are_the_same_each_time():
    names = [one.name for one in make_seeds()]
    assert len(names) == len(set(names))
    assert make_seeds() == make_seeds()
