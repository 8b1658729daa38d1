"""Headers are read before anything is decoded: what is not taken is named, what costs too much is refused."""

from __future__ import annotations

import io
import struct
import time
import zlib

import pytest
from PIL import ExifTags, Image

from handlers.shared.errors import RequestError
from handlers.shared.images import DECODERS, decode_image
from handlers.shared.pictures.exif import read_orientation
from handlers.shared.pictures.formats import name_format
from handlers.shared.pictures.picture import LARGEST_PROFILE, LIMITS, BrokenError
from handlers.shared.pictures.readers import READERS, read_picture
from handlers.shared.preprocessing import FastPreprocessing, ImageSize
from models.canary import draw_image
from tests.handlers.files import (
    chunk,
    encode,
    insert_chunks,
    insert_segments,
    make_bmp,
    make_display_p3,
    make_png,
    make_scans,
    make_tiff,
    segment,
)

FAST = FastPreprocessing(ImageSize(resize=72, crop=64), mean=[0.5] * 3, std=[0.5] * 3)
PHOTO = draw_image(90, 80, seed=1)
JPEG, PNG, GIF = (encode(PHOTO, form) for form in ("JPEG", "PNG", "GIF"))


def refuse(data: bytes, **limits: int) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_image(data, FAST, {**LIMITS, **limits})
    return caught.value


def ftyp(brand: bytes) -> bytes:
    return struct.pack(">L", 24) + b"ftyp" + brand + bytes(12)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (ftyp(b"heic"), "HEIC"),
        (ftyp(b"mif1"), "HEIC"),
        (ftyp(b"avif"), "AVIF"),
        (ftyp(b"isom"), "MP4 or QuickTime video"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b'<?xml version="1.0"?>\n<!-- a drawing -->\n<svg/>', "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><a/>", "XML"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b'{"data": 1}', "JSON"),
        (b" [1, 2]", "JSON"),
        (b"%PDF-1.7\n", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n{} loop", "PostScript (EPS)"),
        (b"\xc5\xd0\xd3\xc6" + bytes(30), "PostScript (EPS)"),
        (b"qoif" + bytes(10), "QOI"),
        (encode(PHOTO, "ICO"), "ICO or CUR"),
        (encode(PHOTO, "ICNS"), "ICNS"),
        (encode(PHOTO, "JPEG2000"), "JPEG 2000"),
        (b"\xff\x4f\xff\x51" + bytes(30), "JPEG 2000"),
        (b"\xff\x0a" + bytes(30), "JPEG XL"),
        (b"8BPS\0\1" + bytes(30), "PSD"),
        (b"\x1c\x03\x3c\0\2\1\0", "IPTC"),
        (encode(PHOTO, "TIFF", big_tiff=True), "BigTIFF"),
        (encode(PHOTO, "PPM"), "PBM, PGM or PPM"),
        (b"PK\3\4" + bytes(30), "ZIP"),
        (b"RIFF\0\0\0\0WAVEfmt ", "WAV or AVI"),
        (b"/9j/4AAQSkZJRgABAQ", "base64 text"),
        (b"data:image/png;base64,iVBO", "base64 text"),
        (b"hello world", "text"),
        ("größer".encode(), "text"),
        (bytes(20), "no image of a known kind"),
    ],
)
def test_what_is_not_taken_is_named(data, name):
    error = refuse(data)
    assert error.status == 415
    assert str(error).startswith(f"the body is {name} ({len(data)} bytes starting {data[:8]!r})")
    assert str(error).endswith("; send JPEG, PNG, WebP, GIF, BMP or TIFF")


def test_names_are_found_at_once_in_any_body():
    for body in (b" " * 10_000, b"<!--" * 4_000_000, b"<?xml" + b" <!--" * 1_000_000, bytes(16 << 20)):
        started = time.process_time()
        with pytest.raises(RequestError):
            name_format(body)
        assert time.process_time() - started < 5  # under 1 ms on a quiet machine


@pytest.mark.parametrize("form", READERS)
def test_size_is_read_as_the_decoder_reads_it(form):
    picture = read_picture(encode(PHOTO, form), LIMITS)
    assert (picture.format, picture.width, picture.height) == (form, 90, 80)
    assert Image.open(io.BytesIO(picture.data), formats=(form,)).size == (90, 80)


@pytest.mark.parametrize("form", READERS)
def test_a_file_that_is_cut_anywhere_is_refused_and_nothing_else(form):
    data = encode(draw_image(20, 15, seed=1), form, **({"lossless": True} if form == "WEBP" else {}))
    for length in range(1, len(data) - 20, 7):
        assert refuse(data[:length]).status in (400, 415)


def test_a_size_that_the_decoder_does_not_share_is_broken(monkeypatch):
    from handlers.shared.pictures import bmp

    monkeypatch.setattr(bmp, "_read_header", lambda data: (16, 16, 0))
    error = refuse(encode(PHOTO, "BMP"))
    assert str(error).endswith("it decodes to 90×80 and says 16×16)")


@pytest.mark.parametrize("form", READERS)
def test_what_follows_the_file_in_the_body_is_not_looked_at(form):
    data = encode(PHOTO, form)
    assert (decode_image(data + bytes(1 << 20), FAST) == decode_image(data, FAST)).all()


# JPEG


def test_metadata_is_kept_from_the_decoder():
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    data = encode(PHOTO, "JPEG", exif=exif, comment="x" * 1000, icc_profile=make_display_p3())
    thumbnail = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + JPEG)
    picture = read_picture(insert_segments(data, thumbnail), LIMITS)
    assert (picture.orientation, picture.profile) == (6, make_display_p3())
    opened = Image.open(io.BytesIO(picture.data))
    opened.load()
    assert set(opened.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_a_profile_in_several_segments_is_joined_in_their_order():
    parts = [b"ICC_PROFILE\0" + bytes([number, 2]) + content for number, content in ((2, b"b"), (1, b"a"))]
    picture = read_picture(insert_segments(JPEG, *(segment(0xE2, part) for part in parts)), LIMITS)
    assert picture.profile == b"ab"


@pytest.mark.parametrize("scans", [32, 33])
def test_scans_are_counted(scans):
    data = make_scans(64, scans)
    if scans <= LIMITS["jpeg_scans"]:
        assert decode_image(data, FAST).shape == (64, 64, 3)
        return
    error = refuse(data)
    assert error.status == 413
    assert str(error) == "the image is a JPEG of more than 32 scans; encoders write 3 to 18"


def test_scans_hide_neither_in_a_comment_nor_behind_one():
    data = make_scans(64, 40)
    hidden = segment(0xFE, b"\xff\xd9\xff\xda")
    place = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    assert refuse(data[:place] + hidden + data[place:]).status == 413
    # What only looks like scans, in a thumbnail and in a comment between scans, is not counted.
    fine = make_scans(64, 4)
    place = fine.index(b"\xff\xda", fine.index(b"\xff\xda") + 2)
    looks = fine[:place] + segment(0xFE, b"\xff\xda" * 50) + fine[place:]
    assert decode_image(insert_segments(looks, segment(0xE1, b"\xff\xda" * 50)), FAST).shape == (64, 64, 3)


def test_a_sequential_jpeg_in_several_scans_is_counted_too():
    start = JPEG.index(b"\xff\xda")
    # The first scan's header names one of the three components.
    one_component = segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
    assert refuse(JPEG[:start] + (one_component + b"\0") * 40).status == 413


def test_what_a_progressive_jpeg_keeps_is_judged_by_its_samples():
    for subsampling, samples in ((0, 96 * 96 * 3), (2, 96 * 96 * 3 // 2)):
        data = encode(draw_image(96, 96, seed=1), "JPEG", progressive=True, subsampling=subsampling)
        error = refuse(data, jpeg_samples=samples - 1)
        assert (error.status, f"of which {samples} samples" in str(error)) == (413, True)
        decode_image(data, FAST, {**LIMITS, "jpeg_samples": samples})
    decode_image(JPEG, FAST, {**LIMITS, "jpeg_samples": 1})


@pytest.mark.parametrize("frame", [0xC3, 0xC9, 0xCA])
def test_jpegs_that_no_browser_shows_are_refused(frame):
    error = refuse(JPEG.replace(b"\xff\xc0", bytes([0xFF, frame]), 1))
    assert error.status == 415
    assert "lossless, arithmetic-coded or of more than 8 bits" in str(error)


@pytest.mark.parametrize(
    "filler",
    [
        b"\xff\xfe\0\2" * 4_000_000,
        b"\xff" * 16_000_000,
        b"\xff\xe1\0\4ab" * 2_000_000,
        b"\xff\x01" * 8_000_000,
    ],
)
def test_headers_without_end_are_passed_over_or_refused_at_once(filler):
    started, refused = time.process_time(), "the image has more than 16384 segments"
    try:
        decode_image(JPEG[:2] + filler + JPEG[2:], FAST)
    except RequestError as error:
        refused = str(error)
    assert refused == "the image has more than 16384 segments"
    assert time.process_time() - started < 5


def test_a_jpeg_with_two_sizes_is_broken():
    start = JPEG.index(b"\xff\xc0")
    assert "it says its size twice" in str(refuse(JPEG[:start] + JPEG[start : start + 19] + JPEG[start:]))


# PNG


def test_png_text_is_never_unpacked_and_frames_are_dropped():
    bomb = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 20)))
    frames = chunk(b"acTL", struct.pack(">LL", 1000, 0)) + chunk(b"fdAT", b"rubbish")
    picture = read_picture(insert_chunks(PNG, bomb, frames), LIMITS)
    assert picture.data == read_picture(PNG, LIMITS).data


def test_a_png_of_many_chunks_is_refused():
    error = refuse(insert_chunks(PNG, chunk(b"tEXt", b"a\0b") * 16_400))
    assert (error.status, str(error)) == (413, "the image has more than 16384 chunks")


def test_a_png_profile_that_unpacks_to_more_than_profiles_have_is_none():
    bomb = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(LARGEST_PROFILE + 1)))
    assert read_picture(insert_chunks(PNG, bomb), LIMITS).profile is None
    fine = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1000)))
    assert read_picture(insert_chunks(PNG, fine), LIMITS).profile == bytes(1000)


def test_a_png_without_pixels_is_broken():
    assert refuse(make_png(8, 8, depth=8, colours=2, rows=b"")).status == 400


# GIF


def test_of_a_gif_only_the_first_frame_is_there():
    frames = [draw_image(90, 80, seed=seed).convert("P") for seed in (1, 2, 3)]
    animation = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], comment=b"x" * 500)
    picture = read_picture(animation, LIMITS)
    assert "comment" not in Image.open(io.BytesIO(picture.data)).info
    one, all_ = (decode_image(encode(frames[0], "GIF"), FAST), decode_image(animation, FAST))
    assert (one == all_).all()


def test_a_gif_of_comments_is_refused():
    error = refuse(GIF[:13] + b"!\xfe" + b"\1x" * 5_000_000)
    assert str(error) in (
        "the image has more than 16384 blocks before its first frame",
        f"the image is broken ({13 + 2 + 10_000_000} bytes, it has no frame)",
    )


def test_a_gif_frame_that_is_larger_than_its_screen_counts():
    place = GIF.index(b",\0\0\0\0\x5a\0")
    large = GIF[: place + 5] + struct.pack("<HH", 60_000, 60_000) + GIF[place + 9 :]
    assert "60000×60000" in str(refuse(large))


# BMP


@pytest.mark.parametrize("packing", [1, 2, 4, 5])
def test_compressed_bmps_are_refused(packing):
    error = refuse(make_bmp(16, 16, packing=packing, pixels=b"\x10\x01" * 16))
    assert error.status == 415
    assert str(error) == (
        "the image is a BMP that is compressed, which is not decoded here; save it uncompressed, or as PNG"
    )
    assert decode_image(make_bmp(16, 16, packing=0, pixels=bytes(256)), FAST).shape == (64, 64, 3)


def test_decoders_in_python_are_never_used():
    opened = Image.open(io.BytesIO(make_bmp(16, 16, packing=1, pixels=b"\x10\x01" * 16)))
    assert {tile.codec_name for tile in opened.tile} - DECODERS == {"bmp_rle"}


# TIFF


def test_of_a_tiff_only_the_first_page_and_what_makes_pixels_is_there():
    pages = encode(PHOTO, "TIFF", save_all=True, append_images=[PHOTO] * 3, description="x" * 1000)
    opened = Image.open(io.BytesIO(read_picture(pages, LIMITS).data))
    assert (opened.n_frames, ExifTags.Base.ImageDescription in opened.tag_v2) == (1, False)
    assert (decode_image(pages, FAST) == decode_image(encode(PHOTO, "TIFF"), FAST)).all()


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "packbits", "jpeg"])
def test_tiffs_as_they_are_made_are_decoded(compression):
    assert decode_image(encode(PHOTO, "TIFF", compression=compression), FAST).shape == (64, 64, 3)
    fax = encode(PHOTO.convert("1"), "TIFF", compression="group4")
    assert decode_image(fax, FAST).shape == (64, 64, 3)


@pytest.mark.parametrize("compression", [6, 34925, 50000, 50001])
def test_rare_compressions_are_refused(compression):
    error = refuse(make_tiff(bytes(64), 8, 8, {259: (3, [compression])}))
    assert error.status == 415
    assert f"a TIFF with compression {compression}, which is not decoded here; taken are none," in str(error)


@pytest.mark.parametrize(
    ("entries", "status", "message"),
    [
        ({273: (4, [8] * 17_000)}, 413, "more than 16384 values in tag 273"),
        ({273: (4, [8] * 99), 279: (4, [64] * 99)}, 400, "its strips are longer than the file"),
        (
            {322: (4, [60_000]), 323: (4, [60_000]), 324: (4, [8]), 325: (4, [64])},
            413,
            "MiB to decode as TIFF",
        ),
        ({256: (4, [1 << 20])}, 413, "at most 65535 a side"),
        ({256: (4, [0])}, 400, "it has 0×8 pixels"),
    ],
)
def test_tiffs_that_cost_more_than_they_show_are_refused(entries, status, message):
    error = refuse(make_tiff(bytes(64), 8, 8, entries))
    assert (error.status, message in str(error)) == (status, True)


def test_a_tiff_that_says_a_tag_twice_is_broken():
    data = bytearray(make_tiff(bytes(64), 8, 8, {}))
    (start,) = struct.unpack_from("<L", data, 4)
    data[start + 14 : start + 16] = data[start + 2 : start + 4]
    assert "a tag stands twice in its directory" in str(refuse(bytes(data)))


def test_a_tiff_whose_directory_points_to_itself_ends():
    data = bytearray(make_tiff(bytes(64), 8, 8, {}))
    (start,) = struct.unpack_from("<L", data, 4)
    struct.pack_into("<L", data, start + 2 + 12 * 9, start)
    assert decode_image(bytes(data), FAST).shape == (64, 64, 3)


def test_a_progressive_jpeg_inside_a_tiff_is_refused():
    inner = encode(PHOTO.convert("L"), "JPEG", progressive=True)
    data = make_tiff(inner, 90, 80, {259: (3, [7]), 262: (3, [1])})
    assert "a TIFF that holds a progressive JPEG" in str(refuse(data))


# EXIF


def test_orientation_is_the_only_thing_read_and_rubbish_is_upright():
    def exif(value: int, kind: int = 3) -> bytes:
        return b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHLHH", 0x112, kind, 1, value, 0)

    assert [read_orientation(exif(value)) for value in (1, 6, 8)] == [1, 6, 8]
    for rubbish in (
        exif(0),
        exif(9),
        exif(6, kind=2),
        b"",
        b"Exif\0\0II*\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
    ):
        assert read_orientation(rubbish) == 1


def test_broken_is_what_readers_say_of_a_file_that_contradicts_itself():
    with pytest.raises(BrokenError, match="it ends before its directory"):
        read_picture(b"II*\0\x08\0", LIMITS)
