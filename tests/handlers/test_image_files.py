"""What is no image is named, what costs too much is rejected before it is decoded, broken is a 400."""

from __future__ import annotations

import struct
import time
import zlib

import pytest
from PIL import ExifTags, Image

from handlers.shared.errors import BadRequest
from handlers.shared.images import LIMITS, SIGNATURES, decode_image, read_orientation
from handlers.shared.preprocessing import FastPreprocessing, ImageSize
from models.samples import draw_image
from tests.handlers.files import (
    chunk,
    encode,
    insert_chunks,
    insert_segments,
    make_bmp,
    make_display_p3,
    make_png,
    make_scans,
    make_webp_frames,
    segment,
)

FAST = FastPreprocessing(ImageSize(resize=72, crop=64), mean=[0.5] * 3, std=[0.5] * 3)
PHOTO = draw_image(90, 80, seed=1)
JPEG, PNG, GIF = (encode(PHOTO, form) for form in ("JPEG", "PNG", "GIF"))
RESTS = {"JPEG": JPEG, "PNG": PNG, "GIF": GIF, "WEBP": encode(PHOTO, "WEBP"), "BMP": encode(PHOTO, "BMP")}


def reject(data: bytes, **limits: int) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode_image(data, FAST, {**LIMITS, **limits})
    return caught.value


def sees_the_same(data: bytes, other: bytes) -> bool:
    return bool((decode_image(data, FAST) == decode_image(other, FAST)).all())


def ftyp(brand: bytes) -> bytes:
    return struct.pack(">L", 24) + b"ftyp" + brand + bytes(12)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (ftyp(b"heic"), "HEIC"),
        (ftyp(b"mif1"), "HEIC"),
        (ftyp(b"avif"), "AVIF"),
        (encode(PHOTO, "TIFF"), "TIFF"),
        (encode(PHOTO, "TIFF", big_tiff=True), "TIFF"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b'<?xml version="1.0"?>\n<!-- a drawing -->\n<svg/>', "SVG"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b'{"data": 1}', "JSON"),
        (b"%PDF-1.7\n", "PDF"),
        (encode(PHOTO, "JPEG2000"), "JPEG 2000"),
        (b"\xff\x0a" + bytes(30), "JPEG XL"),
        (b"/9j/4AAQSkZJRgABAQ", "base64 text"),
        (b"data:image/png;base64,iVBO", "base64 text"),
        ("größer".encode(), "text"),
        # Pillow would run Ghostscript for the first, and decode the others in Python or before their size.
        (b"\xc5\xd0\xd3\xc6" + bytes(30), "no image of a known kind"),
        (b"qoif" + bytes(10), "no image of a known kind"),
        (encode(PHOTO, "ICO"), "no image of a known kind"),
        (b"\x1c\x03\x3c\0\2\1\0", "no image of a known kind"),
        (encode(PHOTO, "PPM"), "no image of a known kind"),
    ],
)
def test_what_is_not_taken_is_named(data, name):
    error = reject(data)
    assert error.status == 415
    assert str(error).startswith(f"the body is {name} ({len(data)} bytes starting {data[:8]!r})")


def test_names_are_found_at_once_in_any_body():
    for body in (b" " * 10_000, b"<!--" * 4_000_000, b"<?xml" + b" <!--" * 1_000_000, bytes(16 << 20)):
        started = time.process_time()
        assert reject(body).status == 415
        assert time.process_time() - started < 5  # under 1 ms on a quiet machine


@pytest.mark.parametrize("form", SIGNATURES)
def test_a_file_that_is_cut_anywhere_is_rejected_and_nothing_else(form):
    data = encode(draw_image(20, 15, seed=1), form, **({"lossless": True} if form == "WEBP" else {}))
    for length in range(1, len(data) - 20, 7):
        assert reject(data[:length]).status in (400, 415)


@pytest.mark.parametrize("form", SIGNATURES)
def test_what_follows_the_file_in_the_body_is_not_looked_at(form):
    assert sees_the_same(RESTS[form] + bytes(1 << 20), RESTS[form])


def overlapping_exif(size: int) -> bytes:
    """Each of its values is nearly all of it."""
    count = (size - 14) // 12
    rows = b"".join(struct.pack("<HHLL", tag, 7, size - 8, 8) for tag in range(1000, 1000 + count))
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", count) + rows + bytes(4)


FEW_MARKS = b"\xff" * 16_000_000 + b"\0"
JPEG_HEAD = {
    "comments": (b"\xff\xfe\0\2" * 4_000_000, 413),
    "segments": (b"\xff\xe1\0\4ab" * 2_000_000, 413),
    "filling": (b"\xff" * 16_000_000, 200),
    "filling that ends in data": (FEW_MARKS, 200),
    "marks without length": (b"\xff\x01" * 8_000_000, 200),
    "restarts": (b"\xff\xd0" * 8_000_000, 200),
    "overlapping EXIF": (segment(0xE1, overlapping_exif(65_000)) * 200, 200),
    "Photoshop's": (segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\0\0" * 5400) * 200, 200),
}
PNG_BOMB = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 20)))
PNG_PROFILE_BOMB = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(4 << 20), 9))
PNG_HEAD = {
    "chunks": (chunk(b"teSt", b"") * 1_300_000, 413),
    "text that unpacks": (PNG_BOMB * 10_000, 200),
    "profiles that unpack": (PNG_PROFILE_BOMB * 3000, 200),
    "EXIF": (chunk(b"eXIf", overlapping_exif(700_000)), 200),
}
BODIES = {
    **{f"JPEG: {name}": (JPEG[:2] + head + JPEG[20:], status) for name, (head, status) in JPEG_HEAD.items()},
    **{f"PNG: {name}": (insert_chunks(PNG, head), status) for name, (head, status) in PNG_HEAD.items()},
    "GIF: comments": (GIF[:781] + b"!\xfe" + b"\1x" * 5_000_000 + b"\0" + GIF[781:], 413),
    "GIF: nothing": (GIF[:781] + bytes(10_000_000), 400),
    "WebP: frames": (make_webp_frames(3000, 3000, 300_000), 200),
    "WebP: a canvas": (make_webp_frames(13_000, 13_000, 1), 413),
    "BMP: run lengths": (make_bmp(4096, 4096, packing=1, pixels=b"\1\1" * 8_000_000), 415),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_cheap_to_send_is_cheap_to_read(name):
    data, expected = BODIES[name]
    assert len(data) <= 16 << 20
    started, status = time.process_time(), 200
    try:
        decode_image(data, FAST)
    except BadRequest as error:
        status = error.status
    assert status == expected
    assert time.process_time() - started < 2


# JPEG


def test_metadata_is_used_and_kept_from_the_decoder():
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    plain = {"icc_profile": make_display_p3(), "exif": exif}
    data = encode(PHOTO, "JPEG", **plain)
    thumbnail = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + JPEG)
    assert sees_the_same(insert_segments(encode(PHOTO, "JPEG", comment="x" * 1000, **plain), thumbnail), data)
    assert not sees_the_same(JPEG, data)


def test_a_profile_in_several_segments_is_joined_in_their_order():
    profile = make_display_p3()
    parts = [
        b"ICC_PROFILE\0" + bytes([at + 1, 2]) + profile[at * 200 :][: 200 if at == 0 else None]
        for at in (1, 0)
    ]
    split = insert_segments(JPEG, *(segment(0xE2, part) for part in parts))
    assert sees_the_same(split, encode(PHOTO, "JPEG", icc_profile=profile))


def test_scans_are_counted():
    assert decode_image(make_scans(64, 32), FAST).shape == (64, 64, 3)
    assert reject(make_scans(64, 33)).status == 413


def insert_before_the_second_scan(data: bytes, inserted: bytes) -> bytes:
    place = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    return data[:place] + inserted + data[place:]


@pytest.mark.parametrize("hidden", [segment(0xFE, b"\xff\xd9\xff\xda"), b"\xff\xfe\0\0", b"\xff" * 99])
def test_scans_hide_neither_in_a_comment_nor_behind_one(hidden):
    assert reject(insert_before_the_second_scan(make_scans(64, 40), hidden)).status == 413


def test_what_only_looks_like_scans_is_not_counted():
    looks = insert_before_the_second_scan(make_scans(64, 4), segment(0xFE, b"\xff\xda" * 50))
    assert decode_image(insert_segments(looks, segment(0xE1, b"\xff\xda" * 50)), FAST).shape == (64, 64, 3)


def test_a_sequential_jpeg_in_several_scans_is_counted_too():
    start = JPEG.index(b"\xff\xda")
    # The first scan's header names one of the three components.
    one_component = segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
    assert reject(JPEG[:start] + (one_component + b"\0") * 40).status == 413


def test_what_a_progressive_jpeg_keeps_is_validated_by_its_samples():
    for subsampling, samples in ((0, 96 * 96 * 3), (2, 96 * 96 * 3 // 2)):
        data = encode(draw_image(96, 96, seed=1), "JPEG", progressive=True, subsampling=subsampling)
        assert reject(data, jpeg_samples=samples - 1).status == 413
        decode_image(data, FAST, {**LIMITS, "jpeg_samples": samples})
    decode_image(JPEG, FAST, {**LIMITS, "jpeg_samples": 1})


@pytest.mark.parametrize("frame", [0xC3, 0xC9, 0xCA])
def test_jpegs_that_no_browser_shows_are_rejected(frame):
    assert reject(JPEG.replace(b"\xff\xc0", bytes([0xFF, frame]), 1)).status == 415


def test_a_jpeg_with_two_sizes_is_broken():
    start = JPEG.index(b"\xff\xc0")
    assert reject(JPEG[:start] + JPEG[start : start + 19] + JPEG[start:]).status == 400


# PNG, GIF, BMP


def test_a_png_profile_that_unpacks_to_more_than_profiles_have_is_none():
    assert sees_the_same(insert_chunks(PNG, PNG_PROFILE_BOMB), PNG)
    fine = chunk(b"iCCP", b"a\0\0" + zlib.compress(make_display_p3()))
    assert sees_the_same(insert_chunks(PNG, fine), encode(PHOTO, icc_profile=make_display_p3()))


def test_a_png_without_pixels_is_broken():
    assert reject(make_png(8, 8, depth=8, colours=2, rows=b"")).status == 400


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_only_the_first_frame_is_seen(form):
    first, *more = (draw_image(90, 80, seed=seed).convert("P") for seed in (1, 2, 3))
    lossless = {"lossless": True} if form == "WEBP" else {}
    assert sees_the_same(
        encode(first, form, save_all=True, append_images=more, **lossless), encode(first, form, **lossless)
    )


def test_a_gif_frame_that_is_larger_than_its_screen_counts():
    place = GIF.index(b",\0\0\0\0\x5a\0")
    for side in (6000, 60_000):
        assert reject(GIF[: place + 5] + struct.pack("<HH", side, side) + GIF[place + 9 :]).status == 413


@pytest.mark.parametrize("packing", [1, 2, 4, 5])
def test_compressed_bmps_are_rejected(packing):
    assert reject(make_bmp(16, 16, packing=packing, pixels=b"\x10\x01" * 16)).status == 415
    assert decode_image(make_bmp(16, 16, packing=0, pixels=bytes(256)), FAST).shape == (64, 64, 3)


def test_orientation_is_the_only_thing_read_and_rubbish_is_upright():
    def exif(value: int, kind: int = 3) -> bytes:
        return b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHLHH", 0x112, kind, 1, value, 0)

    assert [read_orientation(exif(value)) for value in (1, 6, 8)] == [1, 6, 8]
    for rubbish in (
        exif(0),
        exif(9),
        exif(6, kind=2),
        b"",
        exif(6)[:-3],
        exif(6)[:14],
        b"Exif\0\0II*\0" + b"\xff" * 4,
    ):
        assert read_orientation(rubbish) == 1
