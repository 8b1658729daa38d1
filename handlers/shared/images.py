"""Turns encoded image bytes into one uint8 sample of the model's size, whatever a client may send.

Read the headers, judge what decoding will cost, decode, make it RGB, turn it upright, resize: in this order,
so that nothing large is made of what will be refused.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping

import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from handlers.shared.errors import RequestError
from handlers.shared.memory import MemoryReturn
from handlers.shared.pictures.colours import to_rgb, transform_sample
from handlers.shared.pictures.exif import turn_upright
from handlers.shared.pictures.jpeg import Jpeg
from handlers.shared.pictures.picture import (
    LIMITS,
    BrokenError,
    Picture,
    check_memory,
    check_pixels,
    check_size,
)
from handlers.shared.pictures.readers import read_picture
from handlers.shared.preprocessing import Preprocessing

RETURNED_MIB = 128
"""A picture that took more gives its memory back. A photograph of 16 megapixels takes as much where it is
decoded whole; at a smaller scale none does."""
RETURNED_BYTES = 12 << 20
"""And so does a body of this size, which no telephone's photograph has."""
MEMORY = MemoryReturn()
"""Of this worker, as its allocator is."""
DECODERS = frozenset({"jpeg", "zip", "raw", "gif", "libtiff"})
"""Pillow's, for the six formats; those it has in Python (`bmp_rle`) are not among them."""
SCALES = (8, 4, 2)
"""What libjpeg can decode at for less."""


def decode_image(
    data: bytes, preprocessing: Preprocessing, limits: Mapping[str, int] = LIMITS
) -> torch.Tensor:
    """JPEG, PNG, WebP … → uint8 (*size.seen, 3) as people see it; RequestError if it cannot be."""
    MEMORY.before_next()
    needed_mib, result = _decode_or_refuse(data, preprocessing, limits)
    if needed_mib > RETURNED_MIB or len(data) > RETURNED_BYTES:
        MEMORY.after_large()
    if isinstance(result, torch.Tensor):
        return result
    try:
        raise result
    finally:
        # The error would hold this frame and the frame the error, and so 16 MiB until the next collection.
        del result


def _decode_or_refuse(
    data: bytes, preprocessing: Preprocessing, limits: Mapping[str, int]
) -> tuple[int, torch.Tensor | RequestError]:
    """(MiB it took, sample or refusal); no exception, because its frames would keep what they had decoded."""
    needed_mib = 0
    try:
        picture = read_picture(data, limits)
        scale = _choose_scale(picture, preprocessing)
        needed_mib = _judge(picture, limits, scale)
        return needed_mib, _make_sample(picture, preprocessing, limits, scale)
    except RequestError as error:
        return needed_mib, error.with_traceback(None)
    except Exception as error:
        # Pillow's plug-ins raise nearly any type on broken files.
        reason = str(error) if isinstance(error, BrokenError) else f"{type(error).__name__}: {error}"
        return needed_mib, RequestError(f"the image is broken ({len(data)} bytes, {reason})")


def _choose_scale(picture: Picture, preprocessing: Preprocessing) -> int:
    """Twice the model's size keeps the quality; only JPEGs can be decoded smaller than they are."""
    if not (isinstance(picture, Jpeg) and preprocessing.scaled_decode):
        return 1
    enough = 2 * preprocessing.size.largest
    possible = min(picture.width // enough, picture.height // enough)
    return next((scale for scale in SCALES if scale <= possible), 1)


def _judge(picture: Picture, limits: Mapping[str, int], scale: int) -> int:
    """MiB that decoding takes; RequestError 413 for what is too much."""
    check_size(picture, limits, most_pixels=limits["jpeg_pixels" if isinstance(picture, Jpeg) else "pixels"])
    pixels = -(-picture.width // scale) * -(-picture.height // scale)
    check_pixels(picture, pixels, limits["pixels"])
    return check_memory(picture, limits, pixels=pixels)


def _make_sample(
    picture: Picture, preprocessing: Preprocessing, limits: Mapping[str, int], scale: int
) -> torch.Tensor:
    with warnings.catch_warnings():
        # PyTorch's: these bytes are read, never written.
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        if isinstance(picture, Jpeg) and picture.is_plain and scale == 1:
            pixels, mode = _decode_jpeg(picture.data), "L" if picture.components == 1 else "RGB"
        else:
            pixels, mode = _decode(picture, scale)
        sample = preprocessing.resize_and_crop(pixels)
    return sample if picture.profile is None else transform_sample(sample, picture.profile, mode)


def _decode_jpeg(data: bytes) -> torch.Tensor:
    """The same libjpeg-turbo and pixels as Pillow's without its copies: 0.8 ms for 500×375, not 1.4."""
    return decode_jpeg(torch.frombuffer(data, dtype=torch.uint8), mode=ImageReadMode.RGB).permute(1, 2, 0)


def _decode(picture: Picture, scale: int) -> tuple[torch.Tensor, str]:
    """(uint8 (height, width, 3) turned upright, the mode that Pillow decoded)."""
    with warnings.catch_warnings():
        # Of sizes, which were judged, and of metadata, which is not used.
        warnings.simplefilter("ignore")
        image = _open(picture, scale)
        image.load()
    mode = image.mode
    # In the same name, so that no third picture is there beside the turned one and its array.
    image = turn_upright(image, picture.orientation)
    return to_rgb(image, picture), mode


def _open(picture: Picture, scale: int) -> Image.Image:
    opened = Image.open(io.BytesIO(picture.data), formats=(picture.format,))
    if opened.size != (picture.width, picture.height):
        size = f"{opened.width}×{opened.height}"
        raise BrokenError(f"it decodes to {size} and says {picture.width}×{picture.height}")
    if {tile.codec_name for tile in opened.tile} - DECODERS:
        raise BrokenError(f"it wants another decoder: {opened.tile[0].codec_name}")
    if scale > 1:
        opened.draft("RGB", (picture.width // scale, picture.height // scale))
    return opened
