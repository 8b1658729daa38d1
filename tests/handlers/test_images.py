"""Decoding gives torchvision's reference pixels, and says what is wrong with what it cannot decode."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from handlers.shared import images
from handlers.shared.errors import RequestError
from handlers.shared.images import decode_image
from handlers.shared.preprocessing import (
    PREPROCESSINGS,
    FastPreprocessing,
    ImageSize,
    ReferencePreprocessing,
)
from models import definition
from models.canary import draw_image

SIZE = ImageSize(resize=72, crop=64)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FAST = FastPreprocessing(SIZE, mean=MEAN, std=STD)
REFERENCE = ReferencePreprocessing(SIZE, mean=MEAN, std=STD)


def encode(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


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


def test_reference_inputs_are_torchvisions_exactly():
    pictures = [draw_image(100, 80, seed=seed) for seed in (1, 2)]
    samples = [decode_image(encode(picture), REFERENCE) for picture in pictures]
    expected = torch.stack(
        [
            reference.normalize(reference.to_tensor(torchvisions_pixels(picture).copy()), MEAN, STD)
            for picture in pictures
        ]
    )
    torch.testing.assert_close(REFERENCE.pack(samples, channels_last=True), expected, rtol=0, atol=0)


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


@pytest.mark.parametrize("channels_last", [True, False])
def test_fast_inputs_are_the_references_but_for_the_last_bits(channels_last):
    samples = [decode_image(encode(draw_image(100, 80, seed=seed)), REFERENCE) for seed in (1, 2, 3)]
    exact = REFERENCE.pack(samples, channels_last=channels_last)
    got = FAST.pack(samples, channels_last=channels_last)
    torch.testing.assert_close(got, exact, rtol=0, atol=1e-6)
    assert got.stride() == exact.stride()


def test_a_batch_is_reused():
    samples = [decode_image(encode(draw_image(100, 80, seed=1)), FAST)]
    assert (
        FAST.pack(samples, channels_last=True).data_ptr() == FAST.pack(samples, channels_last=True).data_ptr()
    )


@pytest.mark.parametrize("form", ["JPEG", "MPO"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpegs_are_decoded_as_pillow_does(form, mode):
    picture = draw_image(90, 80, seed=3).convert(mode)
    extra = {"save_all": True, "append_images": [picture]} if form == "MPO" else {}
    data = encode(picture, form, **extra)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(images._decode_jpeg(data).numpy(), expected)
    np.testing.assert_array_equal(images._decode(data, REFERENCE).numpy(), expected)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_formats_decode_to_the_models_size(form):
    sample = decode_image(encode(draw_image(90, 80, seed=3), form), FAST)
    assert sample.shape == (64, 64, 3)
    assert sample.dtype == torch.uint8


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_exif_orientation_is_applied(form, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(draw_image(120, 90, seed=4), form, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode_image(data, FAST), decode_image(encode(upright), FAST))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_other_colour_modes_become_rgb(mode):
    form = "TIFF" if mode == "CMYK" else "PNG"
    assert decode_image(encode(draw_image(80, 80, seed=5).convert(mode), form), FAST).shape == (64, 64, 3)


def test_sixteen_bit_grey_is_scaled_not_clipped():
    grey = np.full((80, 80), 0x8000, dtype=np.uint16)
    assert decode_image(encode(Image.fromarray(grey)), FAST)[0, 0].tolist() == [128, 128, 128]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the body is empty"),
        (b"hello world", "no image that can be decoded: 11 bytes starting b'hello wo'; send JPEG"),
        (encode(draw_image(90, 90, seed=6), "JPEG")[:400], "the image is broken (400 bytes"),
    ],
)
def test_what_is_no_image_is_refused(data, message):
    with pytest.raises(RequestError) as caught:
        decode_image(data, FAST)
    assert message in str(caught.value)
    assert caught.value.status == 400


@pytest.mark.parametrize("limit", ["MAX_PIXELS", "MAX_DECODED_PIXELS"])
def test_huge_images_are_refused_before_decoding(monkeypatch, limit):
    monkeypatch.setattr(images, limit, 100)
    with pytest.raises(RequestError, match="90×80 = 7200 pixels; at most 100 are decoded as PNG") as caught:
        decode_image(encode(draw_image(90, 80, seed=7)), FAST)
    assert caught.value.status == 413


def test_what_pillow_itself_calls_a_bomb_is_refused_as_too_large():
    with pytest.raises(RequestError, match="the image is too large") as caught:
        decode_image(encode(Image.new("1", (20_000, 20_000))), FAST)
    assert caught.value.status == 413


def test_large_jpegs_are_decoded_at_a_smaller_scale(monkeypatch):
    picture = draw_image(1600, 1200, seed=8)
    monkeypatch.setattr(images, "MAX_DECODED_PIXELS", 800 * 600)
    small = decode_image(encode(picture, "JPEG", quality=95), FAST).numpy().astype(int)
    exact = torchvisions_pixels(picture).astype(int)
    assert np.abs(small - exact).mean() < 3


def test_cmyk_jpegs_are_turned_as_pillow_does():
    data = encode(draw_image(90, 80, seed=5).convert("CMYK"), "JPEG")
    expected = torchvisions_pixels(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data, REFERENCE), expected)


def test_the_definition_allows_exactly_the_preprocessings_there_are():
    assert tuple(PREPROCESSINGS) == definition.PREPROCESSINGS
