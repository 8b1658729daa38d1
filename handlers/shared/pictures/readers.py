"""One reader for each format; a new one is a file and a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from handlers.shared.pictures.bmp import read_bmp
from handlers.shared.pictures.formats import name_format
from handlers.shared.pictures.gif import read_gif
from handlers.shared.pictures.jpeg import read_jpeg
from handlers.shared.pictures.picture import Picture
from handlers.shared.pictures.png import read_png
from handlers.shared.pictures.tiff import read_tiff
from handlers.shared.pictures.webp import read_webp

READERS: Mapping[str, Callable[[bytes, Mapping[str, int]], Picture]] = {
    "JPEG": read_jpeg,
    "PNG": read_png,
    "WEBP": read_webp,
    "GIF": read_gif,
    "BMP": read_bmp,
    "TIFF": read_tiff,
}


def read_picture(data: bytes, limits: Mapping[str, int]) -> Picture:
    """What the body holds; RequestError 415 or 413, or BrokenError, before anything is decoded."""
    return READERS[name_format(data)](data, limits)
