"""Turns encoded image bytes into one uint8 sample of the model's size, whatever a client may send.

Pillow reads the headers, which decodes nothing; they say what decoding will cost; then the image is decoded,
turned upright, made RGB and resized. Pillow is given only what makes pixels: it reads metadata in
Python and without bounds, of 16 MiB for 6 s (comments of a JPEG) or into 600 MiB (those of a GIF).
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torchvision.io import ImageReadMode, decode_jpeg

from handlers.shared.colours import LARGEST_PROFILE, to_rgb, transform_sample
from handlers.shared.errors import BadRequest
from handlers.shared.memory import MemoryReturn
from handlers.shared.preprocessing import Preprocessing

LIMITS: Mapping[str, int] = {
    "jpeg_pixels": 128_000_000,
    "pixels": 24_000_000,
    "side_pixels": 65_535,
    "decode_mib": 240,
    "jpeg_scans": 32,
    "jpeg_samples": 72_000_000,
    "parts": 16_384,
}
"""What one image may cost where no plan says so; the plan has the reasons, and a test compares the two."""

TAKEN = "JPEG, PNG, WebP, GIF or BMP"
SIGNATURES = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WEBP": rb"RIFF....WEBP",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM",
}
"""Pillow's names of what is taken, and how it begins."""
OTHERS = {
    "HEIC": rb"....ftyp(hei|hev|mif1|msf1)",
    "AVIF": rb"....ftypavi",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "SVG": rb"(\xef\xbb\xbf)?\s*(<svg|<(\?xml|!--|!doctype)(?=.*<svg))",
    "HTML": rb"(\xef\xbb\xbf)?\s*(<!doctype html|<html|<head|<body)",
    "JSON": rb"(\xef\xbb\xbf)?\s*[\[{]",
    "PDF": rb"%PDF-",
    "JPEG 2000": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n",
    "base64 text": rb"(data:image/[a-z+]+;base64,|/9j/|iVBORw0KGgo|R0lGOD|UklGR|Qk0)",
    "text": rb"[\t\r\n\x20-\x7e\x80-\xff]*\Z",
}
"""What else people send, in the order in which it is looked for; the name is part of the answer."""
LOOKED_AT = 10_000
"""Bytes; an SVG may begin with a comment of its drawing program."""

PIXEL_BYTES = {"JPEG": 8, "PNG": 8, "GIF": 8, "BMP": 8, "WEBP": 20}
"""Memory that decoding takes at its peak, measured: Pillow's image of 4 bytes a pixel and the array of 3,
rounded up; of WebP libwebp's two canvases, the frame as it is decoded, Pillow's copy of it and its image."""
PNG_PIXEL_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
"""All others are metadata, text that unpacks to a thousand times its size, or frames of an animation."""
JPEG_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
"""Of those that have a length. FF 00 is a byte of data, and D0 to D7 are places to start again."""
JPEG_END, JPEG_SCAN, JPEG_EXIF, JPEG_PROFILE = 0xD9, 0xDA, 0xE1, 0xE2
JPEG_METADATA = frozenset({*range(0xE1, 0xF0), 0xFE} - {0xEE})
"""Libjpeg needs Adobe's segment, EE, to know the colours; JFIF's costs nothing."""
JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
JPEG_PROGRESSIVE = 0xC2
JPEG_SHOWN = frozenset({0xC0, 0xC1, JPEG_PROGRESSIVE})
"""Baseline, extended, progressive; the others are lossless, hierarchical or arithmetic-coded."""
JPEG_SCALES = (8, 4, 2)
"""What libjpeg can decode at for less."""
EXIF_HEADER = b"Exif\0\0"

RETURNED_MIB = 128
"""An image that took more gives its memory back. A photograph of 16 megapixels takes as much where it is
decoded whole; at a smaller scale none does."""
RETURNED_BYTES = 12 << 20
"""And so does a body of this size, which no telephone's photograph has."""
MEMORY = MemoryReturn()
"""Of this worker, as its allocator is."""


class BrokenError(Exception):
    """A file that contradicts its own format; the message says where."""


@dataclass(frozen=True)
class Trimmed:
    """A file without what makes no pixels."""

    data: bytes
    exif: bytes = b""
    profile: bytes = b""
    """The embedded ICC profile."""
    extra_bytes: int = 0
    """Memory that decoding takes beside PIXEL_BYTES."""


def decode_image(
    data: bytes, preprocessing: Preprocessing, limits: Mapping[str, int] = LIMITS
) -> torch.Tensor:
    """JPEG, PNG, WebP … → uint8 (*size.seen, 3) as people see it; BadRequest if it cannot be."""
    MEMORY.before_next()
    needed_mib, result = _decode_or_reject(data, preprocessing, limits)
    if needed_mib > RETURNED_MIB or len(data) > RETURNED_BYTES:
        MEMORY.after_large()
    if isinstance(result, torch.Tensor):
        return result
    try:
        raise result
    finally:
        # The error would hold this frame and the frame the error, and so 16 MiB until the next collection.
        del result


def _decode_or_reject(
    data: bytes, preprocessing: Preprocessing, limits: Mapping[str, int]
) -> tuple[int, torch.Tensor | BadRequest]:
    """(MiB it took, sample or rejection); no exception: its frames would keep what they had decoded."""
    needed_mib = 0
    try:
        form = _name_format(data)
        file = TRIMMERS[form](data, limits)
        with warnings.catch_warnings():
            # Pillow's of sizes, which are checked here, and PyTorch's of bytes that are read, never written.
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(file.data), formats=(form,))
            scale = _choose_scale(image, preprocessing)
            needed_mib = _judge(form, image.size, limits, scale=scale, extra_bytes=file.extra_bytes)
            profile = file.profile or image.info.get("icc_profile")
            pixels, mode = _decode(image, file, profile, scale), image.mode
            # Before others are made of its pixels.
            del image
            sample = preprocessing.resize_and_crop(pixels)
            return needed_mib, transform_sample(sample, profile, mode) if profile else sample
    except BadRequest as error:
        return needed_mib, error.with_traceback(None)
    except Image.DecompressionBombError as error:
        return needed_mib, BadRequest(413, f"the image has too many pixels: {error}")
    except Exception as error:
        # Pillow's plug-ins raise nearly any type on broken files.
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, BrokenError | UnidentifiedImageError):
            reason = str(error) if isinstance(error, BrokenError) else f"its headers are no {form}'s"
        return needed_mib, BadRequest(400, f"the image is broken ({len(data)} bytes, {reason})")


def _too_large(what: str) -> BadRequest:
    return BadRequest(413, f"the image {what}")


def _not_decoded(variant: str, *, instead: str) -> BadRequest:
    return BadRequest(415, f"the image is a {variant}, which is not decoded here; {instead}")


def _check_parts(parts: int, limits: Mapping[str, int], what: str) -> None:
    if parts > limits["parts"]:
        raise _too_large(f"has more than {limits['parts']} {what}")


def _name_format(data: bytes) -> str:
    """Pillow's name of what the body begins as; BadRequest 415 with the name of what is not taken."""
    for form, signature in SIGNATURES.items():
        if re.match(signature, data, re.DOTALL):
            return form
    if not data:
        raise BadRequest(400, f"the body is empty; send the bytes of an image: {TAKEN}")
    start, flags = data[:LOOKED_AT], re.DOTALL | re.IGNORECASE
    names = (name for name, pattern in OTHERS.items() if re.match(pattern, start, flags))
    name = next(names, "no image of a known kind")
    hint = '; as JSON it goes into {"data": "…"}' if name == "base64 text" else ""
    shown = f"{name} ({len(data)} bytes starting {data[:8]!r}){hint}"
    raise BadRequest(415, f"the body is {shown}; send {TAKEN}")


def _trim_jpeg(data: bytes, limits: Mapping[str, int]) -> Trimmed:
    kept, exif, frame, samples = [data[:2]], b"", b"", 0
    profile: list[tuple[bytes, bytes]] = []
    for marker, start, end in _walk_jpeg(data, 2, limits):
        payload = data[start:end]
        if marker == JPEG_SCAN:
            if not frame:
                raise BrokenError("it has a scan before the size")
            # Not all components at once: their samples are kept until the last scan has been read.
            if frame[0] == JPEG_PROGRESSIVE or payload[0] < frame[6]:
                samples = _count_samples(frame, limits)
                _check_scans(data, end, limits)
            rest = b"".join([*kept, memoryview(data)[start - 4 :]])
            # A sample is a coefficient of 2 bytes.
            return Trimmed(rest, exif, b"".join(part for _, part in sorted(profile)), 2 * samples)
        if marker in JPEG_FRAMES:
            if marker not in JPEG_SHOWN or payload[:1] != b"\x08":
                variant = "JPEG that is lossless, arithmetic-coded or of more than 8 bits"
                raise _not_decoded(variant, instead="send one that browsers show")
            frame = b"%c" % marker + payload
        elif marker == JPEG_EXIF and payload.startswith(EXIF_HEADER):
            exif = exif or payload
        elif marker == JPEG_PROFILE and payload.startswith(b"ICC_PROFILE\0"):
            profile.append((payload[12:13], payload[14:]))
        if marker not in JPEG_METADATA:
            kept.append(data[start - 4 : end])
    raise BrokenError("it ends before its pixels")


def _walk_jpeg(data: bytes, place: int, limits: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """(marker, start of its payload, end) of each segment, also of those between scans."""
    parts = 0
    while (found := JPEG_MARKER.search(data, place)) and found[1][0] != JPEG_END:
        parts += 1
        _check_parts(parts, limits, "segments")
        start = found.end() + 2
        # A decoder passes over a segment that is shorter than its own length.
        place = max(start, start - 2 + int.from_bytes(data[start - 2 : start], "big"))
        if place > len(data):
            return
        yield found[1][0], start, place


def _check_scans(data: bytes, place: int, limits: Mapping[str, int]) -> None:
    """A scan of 13 bytes may make the decoder visit every coefficient again."""
    scans = 1
    for marker, _, _ in _walk_jpeg(data, place, limits):
        scans += marker == JPEG_SCAN
        if scans > limits["jpeg_scans"]:
            raise _too_large(f"is a JPEG of more than {limits['jpeg_scans']} scans; encoders write 3 to 18")


def _count_samples(frame: bytes, limits: Mapping[str, int]) -> int:
    """Of all components, in whole blocks; each has a share of the pixels by its sampling factors."""
    height, width, components = struct.unpack_from(">HHB", frame, 2)
    factors = [(byte >> 4, byte & 15) for byte in frame[8 : 7 + 3 * components : 3]]
    widest, highest = (max((*sides, 1)) for sides in zip(*factors, strict=True))
    across, down = -(-width // (8 * widest)) * 8, -(-height // (8 * highest)) * 8
    samples = sum(across * horizontal * down * vertical for horizontal, vertical in factors)
    if samples > limits["jpeg_samples"]:
        raise _too_large(
            f"is a JPEG in several scans, of which {samples} samples would be kept; at most "
            f"{limits['jpeg_samples']} are: send it as a baseline JPEG, or smaller"
        )
    return samples


def _trim_png(data: bytes, limits: Mapping[str, int]) -> Trimmed:
    """Of an animation the image that is shown where animations are not."""
    kept, exif, profile, place, parts = [data[:8]], b"", None, 8, 0
    while place + 8 <= len(data):
        parts += 1
        _check_parts(parts, limits, "chunks")
        size, name = struct.unpack_from(">L4s", data, place)
        start, place = place + 8, place + 8 + size + 4
        if name in PNG_PIXEL_CHUNKS:
            kept.append(data[start - 8 : place])
        elif name == b"eXIf":
            exif = data[start : start + size]
        elif name == b"iCCP" and profile is None:
            profile = _unpack_profile(data[start : start + size])
        if name == b"IEND":
            break
    # Two rows are kept, of up to 8 bytes a pixel.
    width = int.from_bytes(data[16:20], "big")
    return Trimmed(b"".join(kept), exif, profile or b"", 2 * 8 * width)


def _unpack_profile(chunk: bytes) -> bytes:
    """A name, a zero, the way of packing (0), the packed profile; empty where it is not one."""
    _name, _zero, packed = chunk.partition(b"\0")
    try:
        unpacking = zlib.decompressobj()
        profile = unpacking.decompress(packed[1:], LARGEST_PROFILE)
    except zlib.error:
        return b""
    return profile if unpacking.eof else b""


def _trim_gif(data: bytes, limits: Mapping[str, int]) -> Trimmed:
    """Of the extensions before the first frame only the one that says which colour is transparent."""
    start = place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    control, parts = b"", 0
    while data[place : place + 1] == b"!":
        extension, place = place, place + 2
        while data[place : place + 1] > b"\0":
            place, parts = place + 1 + data[place], parts + 1
            _check_parts(parts, limits, "blocks before its first frame")
        place += 1
        if data[extension + 1] == 0xF9:
            control = data[extension:place]
    if data[place : place + 1] != b",":
        raise BrokenError("it has no frame")
    return Trimmed(data[:start] + control + data[place:])


def _trim_webp(data: bytes, limits: Mapping[str, int]) -> Trimmed:
    """All of it, but the size is looked at: to open it makes libwebp's canvases (RFC 9649)."""
    start = data[20:30]
    if data[12:16] == b"VP8X":
        width, height = (1 + int.from_bytes(start[at : at + 3], "little") for at in (4, 7))
    elif data[12:16] == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif data[12:16] == b"VP8 ":
        width, height = (int.from_bytes(start[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    else:
        raise BrokenError("it does not begin with an image")
    _judge("WEBP", (width, height), limits)
    return Trimmed(data)


def _trim_bmp(data: bytes, limits: Mapping[str, int]) -> Trimmed:
    """Only pixels that lie there as they are: Pillow unpacks run lengths in Python, 8 s for 16 MiB."""
    # Raw or with bit fields, or the oldest header (12 bytes), which knows no compression.
    if data[14] != 12 and int.from_bytes(data[30:34], "little") not in (0, 3):
        raise _not_decoded("BMP that is compressed", instead="save it uncompressed, or as PNG")
    return Trimmed(data)


TRIMMERS: Mapping[str, Callable[[bytes, Mapping[str, int]], Trimmed]] = {
    "JPEG": _trim_jpeg,
    "PNG": _trim_png,
    "WEBP": _trim_webp,
    "GIF": _trim_gif,
    "BMP": _trim_bmp,
}


def _choose_scale(image: Image.Image, preprocessing: Preprocessing) -> int:
    """Twice the model's size keeps the quality; only JPEGs can be decoded smaller than they are."""
    if image.format != "JPEG" or not preprocessing.scaled_decode:
        return 1
    possible = min(image.size) // (2 * preprocessing.size.largest)
    return next((scale for scale in JPEG_SCALES if scale <= possible), 1)


def _judge(
    form: str, size: tuple[int, int], limits: Mapping[str, int], *, scale: int = 1, extra_bytes: int = 0
) -> int:
    """MiB that decoding takes; BadRequest 413 for what is too much."""
    (width, height), most = size, limits["pixels"]
    if not width or not height:
        raise BrokenError(f"it has {width}×{height} pixels")
    said = f"has {width}×{height} = {width * height} pixels"
    if max(size) > limits["side_pixels"]:
        raise _too_large(f"{said}; at most {limits['side_pixels']} a side are decoded")
    if form == "JPEG" and width * height > limits["jpeg_pixels"]:
        raise _too_large(f"{said}; at most {limits['jpeg_pixels']} are decoded as JPEG")
    pixels = -(-width // scale) * -(-height // scale)
    if pixels > most:
        scaled = f", decoded at a smaller scale {pixels}" if scale > 1 else ""
        raise _too_large(f"{said}{scaled}; at most {most} are decoded as {form}")
    needed, most = (pixels * PIXEL_BYTES[form] + extra_bytes) >> 20, limits["decode_mib"]
    if needed > most:
        raise _too_large(
            f"{said}, which take {needed} MiB to decode as {form}; at most {most} are given to one"
        )
    return needed


def _decode(image: Image.Image, file: Trimmed, profile: bytes | None, scale: int) -> torch.Tensor:
    """uint8 (height, width, 3) turned upright."""
    # WebP's EXIF is Pillow's to find, the others' have been cut off.
    orientation = read_orientation(file.exif or image.info.get("exif", b""))
    if image.format == "JPEG" and image.mode != "CMYK" and orientation == 1 and scale == 1:
        # The same libjpeg-turbo and pixels as Pillow's without its copies: 0.8 ms for 500×375, not 1.4.
        encoded = torch.frombuffer(file.data, dtype=torch.uint8)
        return decode_jpeg(encoded, mode=ImageReadMode.RGB).permute(1, 2, 0)
    if scale > 1:
        image.draft("RGB", (image.width // scale, image.height // scale))
    image.load()
    if orientation != 1:
        image.info.pop("xmp", None)
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        image.info["exif"] = exif.tobytes()
        # In place: no third image is there beside the turned one and its array.
        ImageOps.exif_transpose(image, in_place=True)
    return to_rgb(image, profile)


def read_orientation(exif: bytes) -> int:
    """1 to 8, 1 where nothing valid is said; Pillow reads all the rest, too, 1.8 s for 16 MiB."""
    tiff = exif.removeprefix(EXIF_HEADER)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    with contextlib.suppress(struct.error):
        (start,) = struct.unpack_from(order + "L", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _count, said = struct.unpack_from(order + "HHLH", tiff, place)
            # Of the type SHORT.
            if (tag, kind) == (ExifTags.Base.Orientation, 3):
                return said if 1 <= said <= 8 else 1
    return 1
