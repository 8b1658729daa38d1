"""Decoding gives torchvision's reference pixels, and says what is wrong with what it cannot decode."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as reference

from handlers.shared import images
from handlers.shared.errors import BadRequest
from handlers.shared.images import LIMITS, SIGNATURES, decode_image
from handlers.shared.preprocessing import (
    FastPreprocessing,
    ImageSize,
    ReferencePreprocessing,
)
from models.samples import draw_image
from tests.handlers.files import encode

SIZE = ImageSize(resize=72, crop=64)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FAST = FastPreprocessing(SIZE, mean=MEAN, std=STD)
REFERENCE = ReferencePreprocessing(SIZE, mean=MEAN, std=STD)


SIZES = [(500, 375), (375, 500), (333, 333), (72, 72), (73, 72), (1000, 80), (80, 1000), (40, 30)]


def torchvisions_pixels(picture: Image.Image) -> np.ndarray:
    resized = reference.resize(picture, [SIZE.resize], InterpolationMode.BILINEAR, antialias=True)
    return np.asarray(reference.center_crop(resized, [SIZE.crop]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_reference_pixels_are_torchvisions_exactly(size, form):
    data = encode(draw_image(*size, seed=1), form)
    expected = torchvisions_pixels(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode_image(data, REFERENCE).numpy(), expected)


OTHER_SIZES = [
    ImageSize(resize=72, crop=64, interpolation="bicubic"),
    ImageSize(resize=[64, 64]),
    ImageSize(resize=[48, 80], interpolation="bicubic"),
    ImageSize(resize=[90, 70], crop=[64, 66], interpolation="bicubic"),
    ImageSize(resize=72, crop=[40, 64], antialias=False),
    ImageSize(resize=[48, 80], interpolation="bicubic", antialias=False),
]


def torchvisions(size: ImageSize) -> v2.Compose:
    """Its own transforms; a list of one number is the shorter side."""
    mode = InterpolationMode(size.interpolation)
    sides = [size.resize] if isinstance(size.resize, int) else size.resize
    crop = v2.CenterCrop(size.crop) if size.crop else v2.Identity()
    return v2.Compose([v2.Resize(sides, mode, antialias=size.antialias), crop])


@pytest.mark.parametrize("size", OTHER_SIZES)
@pytest.mark.parametrize("picture", SIZES)
def test_every_resize_that_can_be_said_is_torchvisions(size, picture):
    drawn = draw_image(*picture, seed=1)
    transform = torchvisions(size)
    exact = ReferencePreprocessing(size, mean=MEAN, std=STD)
    fast = FastPreprocessing(size, mean=MEAN, std=STD)
    got, close = (decode_image(encode(drawn), way).numpy().astype(int) for way in (exact, fast))
    if size.antialias:
        np.testing.assert_array_equal(got, np.asarray(transform(drawn)))
        # From version 13 Pillow may take columns before rows; it rounds in between.
        assert np.abs(close - got).mean() < 0.3
        return
    # Pillow has no such resize: of tensors, which torchvision computes in uint8 or, bilinear, in floats.
    expected = transform(reference.pil_to_tensor(drawn)).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(got - expected).max() <= (0 if size.interpolation == "bicubic" else 1)
    np.testing.assert_array_equal(close, got)


def test_reference_inputs_are_torchvisions_exactly():
    pictures = [draw_image(100, 80, seed=seed) for seed in (1, 2)]
    samples = [decode_image(encode(picture), REFERENCE) for picture in pictures]
    expected = torch.stack(
        [
            reference.normalize(reference.to_tensor(torchvisions_pixels(picture).copy()), MEAN, STD)
            for picture in pictures
        ]
    )
    torch.testing.assert_close(REFERENCE.pack(samples), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("size", "levels", "share"),
    [
        *((size, 1, 0.005) for size in SIZES[:5]),
        # Extremely long pictures: the box's rounding moves more of them.
        *((size, 2, 0.1) for size in SIZES[5:]),
    ],
)
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_fast_pixels_are_torchvisions_but_for_rounding(size, levels, share, form):
    data = encode(draw_image(*size, seed=1), form)
    fast = FastPreprocessing(SIZE, mean=MEAN, std=STD)
    fast.scaled_decode = False
    expected = torchvisions_pixels(Image.open(io.BytesIO(data))).astype(int)
    difference = np.abs(decode_image(data, fast).numpy().astype(int) - expected)
    assert difference.max() <= levels
    assert (difference > 0).mean() <= share


def test_fast_inputs_are_the_references_but_for_the_last_bits():
    samples = [decode_image(encode(draw_image(100, 80, seed=seed)), REFERENCE) for seed in (1, 2, 3)]
    exact = REFERENCE.pack(samples)
    got = FAST.pack(samples)
    torch.testing.assert_close(got, exact, rtol=0, atol=1e-6)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.stride() == exact.stride()


@pytest.mark.parametrize("form", ["JPEG", "MPO"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs_are_decoded_as_pillow_does(form, mode):
    picture = draw_image(90, 80, seed=3).convert(mode)
    extra = {"save_all": True, "append_images": [picture]} if form == "MPO" else {}
    data = encode(picture, form, **extra)
    expected = torchvisions_pixels(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data, REFERENCE), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_exif_orientation_is_applied(form, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if form == "WEBP" else {}
    picture = draw_image(120, 90, seed=4)
    data = encode(picture, form, exif=exif, **lossless)
    upright = encode(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(decode_image(data, FAST), decode_image(upright, FAST))


PHOTO = draw_image(90, 90, seed=6)


def reject(data: bytes, way=FAST, **limits: int) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode_image(data, way, {**LIMITS, **limits})
    return caught.value


def test_an_empty_body_is_named():
    error = reject(b"")
    assert (error.status, str(error).split(";")[0]) == (400, "the body is empty")


@pytest.mark.parametrize("form", SIGNATURES)
@pytest.mark.parametrize("way", [FAST, REFERENCE])
def test_a_file_that_is_cut_in_its_pixels_is_broken(form, way):
    data = encode(draw_image(300, 300, seed=6), form)
    error = reject(data[: len(data) * 6 // 10], way)
    assert error.status == 400
    assert str(error).startswith("the image is broken (")


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.99])
@pytest.mark.parametrize("side", [140, 600])
def test_a_jpeg_that_is_cut_in_its_scan_is_broken_at_any_scale(cut, side):
    data = encode(draw_image(side, side, seed=6), "JPEG")
    scan = data.index(b"\xff\xda")
    assert reject(data[: scan + int((len(data) - scan) * cut)]).status == 400


@pytest.mark.parametrize(
    ("form", "limits"),
    [
        ("PNG", {"pixels": 100}),
        ("JPEG", {"jpeg_pixels": 100}),
        ("JPEG", {"pixels": 100}),
        ("BMP", {"side_pixels": 89}),
        ("PNG", {"parts": 1}),
    ],
)
def test_what_is_too_large_is_rejected_before_anything_is_decoded(monkeypatch, form, limits):
    data = encode(PHOTO, form)
    monkeypatch.setattr(Image.Image, "load", None)
    monkeypatch.setattr(images, "decode_jpeg", None)
    assert reject(data, **limits).status == 413


@pytest.mark.parametrize(("form", "mib"), [("PNG", 7), ("WEBP", 19), ("GIF", 7), ("BMP", 7)])
def test_memory_is_validated_by_what_a_formats_decoder_takes(form, mib):
    data = encode(Image.new("RGB", (1000, 1000)), form)
    error = reject(data, decode_mib=mib - 1)
    assert (error.status, f"{mib} MiB" in str(error)) == (413, True)
    decode_image(data, FAST, {**LIMITS, "decode_mib": mib})


@pytest.mark.parametrize("size", [(2, 9000), (9000, 2)])
@pytest.mark.parametrize("way", [FAST, REFERENCE])
def test_very_long_pictures_cost_no_more_than_their_pixels(size, way, monkeypatch):
    made = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image,
        "resize",
        lambda self, size, *more, **named: made.append(size) or resize(self, size, *more, **named),
    )
    assert decode_image(encode(draw_image(*size, seed=1)), way).shape == (64, 64, 3)
    assert made == [(64, 64)]


@pytest.mark.parametrize("size", [SIZE, *(size for size in OTHER_SIZES if size.antialias)])
def test_large_jpegs_are_decoded_at_a_smaller_scale(size):
    picture = draw_image(1600, 1200, seed=8)
    limits = {**LIMITS, "pixels": 800 * 600}
    fast = FastPreprocessing(size, mean=MEAN, std=STD)
    small = decode_image(encode(picture, "JPEG", quality=95), fast, limits).numpy().astype(int)
    exact = np.asarray(torchvisions(size)(picture)).astype(int)
    assert np.abs(small - exact).mean() < 3
    assert "1600×1200 = 1920000 pixels" in str(reject(encode(picture, "JPEG"), REFERENCE, pixels=800 * 600))


def test_without_antialiasing_no_jpeg_is_decoded_smaller():
    """Its pixels are averages; such a model has learnt from single ones."""
    size = ImageSize(resize=72, crop=64, antialias=False)
    data = encode(draw_image(1600, 1200, seed=8), "JPEG", quality=95)
    decoded = reference.pil_to_tensor(Image.open(io.BytesIO(data)))
    expected = torchvisions(size)(decoded).permute(1, 2, 0).numpy().astype(int)
    got = decode_image(data, FastPreprocessing(size, mean=MEAN, std=STD)).numpy().astype(int)
    assert np.abs(got - expected).max() <= 1
