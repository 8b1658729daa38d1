"""Each row of the table in docs/api.md: the pixels that the model sees."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from handlers.shared import colours
from handlers.shared.images import decode_image
from handlers.shared.preprocessing import FastPreprocessing, ImageSize, ReferencePreprocessing
from tests.handlers.files import (
    chunk,
    encode,
    insert_chunks,
    make_display_p3,
    make_grey_profile,
    make_ink_profile,
    make_png,
)

SIDE = 16
WAYS = [
    way(ImageSize(resize=SIDE, crop=SIDE), mean=[0.5] * 3, std=[0.5] * 3)
    for way in (FastPreprocessing, ReferencePreprocessing)
]
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
RED, WHITE = (255, 0, 0), (255, 255, 255)


def see(data: bytes) -> tuple[int, ...]:
    """The one colour of the image, which both ways of preprocessing must see."""
    fast, reference = (decode_image(data, way).numpy() for way in WAYS)
    np.testing.assert_array_equal(fast, reference)
    assert (fast == fast[0, 0]).all()
    return tuple(fast[0, 0].tolist())


def plain(mode: str, colour) -> Image.Image:
    return Image.new(mode, (SIDE, SIDE), colour)


def with_palette(alphas: bytes | int) -> bytes:
    """A image of colour 1, red, of a palette whose colours have these alphas."""
    image = plain("P", 1)
    image.putpalette([0, 0, 0, *RED, 0, 0, 255])
    return encode(image, transparency=alphas)


def sixteen(level: int) -> bytes:
    return encode(Image.fromarray(np.full((SIDE, SIDE), level, dtype=np.uint16)))


def grey(level: int) -> tuple[int, int, int]:
    return (level,) * 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # Transparency lies on white.
        (encode(plain("RGBA", (255, 0, 0, 0))), WHITE),
        (encode(plain("RGBA", (255, 0, 0, 128))), (255, 127, 127)),
        (encode(plain("RGBA", (255, 0, 0, 128)), "WEBP", lossless=True), (255, 127, 127)),
        (encode(plain("LA", (0, 0))), WHITE),
        (with_palette(1), WHITE),
        (with_palette(0), RED),
        (with_palette(bytes([255, 128, 255])), (255, 127, 127)),
        (encode(plain("RGB", RED), transparency=RED), WHITE),
        (encode(plain("L", 7), transparency=7), WHITE),
        (encode(plain("P", 0), "GIF", transparency=0), WHITE),
        (make_png(SIDE, SIDE, depth=16, colours=2, rows=(b"\0" + b"\xff\xff\0\0\0\0" * SIDE) * SIDE,
                  extra=chunk(b"tRNS", b"\xff\xff\0\0\0\0")), WHITE),
        (insert_chunks(sixteen(7000), chunk(b"tRNS", struct.pack(">H", 7000))), WHITE),
        # One and eight bits, palettes, and inks without a profile.
        (encode(plain("1", 1)), WHITE),
        (encode(plain("L", 77)), grey(77)),
        # Sixteen bits: 65535 is white.
        (sixteen(0x8000), grey(128)),
        (sixteen(0xFFFF), WHITE),
        (sixteen(256), grey(1)),
        # By an embedded profile.
        (encode(plain("RGB", (200, 50, 50)), icc_profile=make_display_p3()), (219, 14, 35)),
        (encode(plain("RGB", (200, 50, 50)), "JPEG", quality=100, icc_profile=make_display_p3()), None),
        (encode(plain("L", 100), icc_profile=make_grey_profile(1.0)), grey(168)),
        (encode(plain("L", 100), "JPEG", icc_profile=make_grey_profile(1.0)), grey(168)),
        (encode(plain("CMYK", (255, 0, 0, 0)), "JPEG", icc_profile=make_ink_profile()), grey(0)),
        # A profile that says sRGB, is broken, is for other colours, or has no bounds, changes nothing.
        (encode(plain("RGB", (200, 50, 50)), icc_profile=SRGB), (200, 50, 50)),
        (encode(plain("RGB", (200, 50, 50)), icc_profile=b"rubbish"), (200, 50, 50)),
        (encode(plain("RGB", (200, 50, 50)), icc_profile=make_display_p3()[:300]), (200, 50, 50)),
        (encode(plain("RGB", (200, 50, 50)), icc_profile=make_ink_profile()), (200, 50, 50)),
        (encode(plain("RGB", (200, 50, 50)), icc_profile=make_display_p3() + b"mpet"), (200, 50, 50)),
    ],
)  # fmt: skip
def test_images_are_seen_as_people_see_them(data, expected):
    seen = see(data)
    if expected is None:
        # JPEG rounds.
        assert np.abs(np.subtract(seen, (219, 14, 35))).max() <= 5
    else:
        assert seen == expected


def test_a_image_in_strips_is_the_same_as_at_once(monkeypatch):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8))
    whole = decode_image(encode(image), WAYS[1])
    monkeypatch.setattr(colours, "STRIP_PIXELS", 100)
    np.testing.assert_array_equal(decode_image(encode(image), WAYS[1]), whole)
