"""Decoding gives torchvision's reference pixels, and says what is wrong with what it cannot decode."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from handlers.shared import images
from handlers.shared.errors import RequestError
from handlers.shared.images import ImageSize, decode_image
from models.canary import draw_image

SIZE = ImageSize(resize=72, crop=64)


def encode(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("size", "levels", "share"),
    [
        ((500, 375), 1, 0.005),
        ((375, 500), 1, 0.005),
        ((333, 333), 1, 0.005),
        ((72, 72), 0, 0.0),
        ((73, 72), 0, 0.0),
        # Enlarged or extremely long pictures: the box's rounding moves more of them.
        ((1000, 80), 2, 0.1),
        ((80, 1000), 2, 0.1),
        ((40, 30), 2, 0.1),
    ],
)
def test_pixels_are_torchvisions_but_for_rounding(size, levels, share):
    picture = draw_image(*size, seed=1)
    resized = reference.resize(picture, [SIZE.resize], InterpolationMode.BILINEAR, antialias=True)
    expected = np.asarray(reference.center_crop(resized, [SIZE.crop])).astype(int)
    # One resampling of the cropped box instead of the whole picture: the box's corners round differently.
    difference = np.abs(decode_image(encode(picture), SIZE).astype(int) - expected)
    assert difference.max() <= levels
    assert (difference > 0).mean() <= share


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_formats_decode_to_the_models_size(form):
    sample = decode_image(encode(draw_image(90, 80, seed=3), form), SIZE)
    assert sample.shape == (64, 64, 3)
    assert sample.dtype == np.uint8


def test_exif_orientation_is_applied():
    picture = draw_image(90, 90, seed=4)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 270 degrees
    turned = decode_image(encode(picture, exif=exif), SIZE)
    upright = decode_image(encode(picture.transpose(Image.Transpose.ROTATE_270)), SIZE)
    np.testing.assert_array_equal(turned, upright)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_other_colour_modes_become_rgb(mode):
    form = "TIFF" if mode == "CMYK" else "PNG"
    assert decode_image(encode(draw_image(80, 80, seed=5).convert(mode), form), SIZE).shape == (64, 64, 3)


def test_sixteen_bit_grey_is_scaled_not_clipped():
    grey = np.full((80, 80), 0x8000, dtype=np.uint16)
    assert decode_image(encode(Image.fromarray(grey)), SIZE)[0, 0].tolist() == [128, 128, 128]


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
        decode_image(data, SIZE)
    assert message in str(caught.value)
    assert caught.value.status == 400


@pytest.mark.parametrize("limit", ["MAX_PIXELS", "MAX_DECODED_PIXELS"])
def test_huge_images_are_refused_before_decoding(monkeypatch, limit):
    monkeypatch.setattr(images, limit, 100)
    with pytest.raises(RequestError, match="90×80 = 7200 pixels; at most 100 are decoded as PNG") as caught:
        decode_image(encode(draw_image(90, 80, seed=7)), SIZE)
    assert caught.value.status == 413


def test_what_pillow_itself_calls_a_bomb_is_refused_as_too_large():
    with pytest.raises(RequestError, match="the image is too large") as caught:
        decode_image(encode(Image.new("1", (20_000, 20_000))), SIZE)
    assert caught.value.status == 413


def test_large_jpegs_are_decoded_at_a_smaller_scale(monkeypatch):
    picture = draw_image(1600, 1200, seed=8)
    monkeypatch.setattr(images, "MAX_DECODED_PIXELS", 800 * 600)
    small = decode_image(encode(picture, "JPEG", quality=95), SIZE).astype(int)
    resized = reference.resize(picture, [SIZE.resize], InterpolationMode.BILINEAR, antialias=True)
    exact = np.asarray(reference.center_crop(resized, [SIZE.crop])).astype(int)
    assert np.abs(small - exact).mean() < 3
