"""Reads a JPEG's segments up to its pixels (ITU-T T.81, annex B), and counts the scans it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from handlers.shared.errors import RequestError
from handlers.shared.pictures.exif import HEADER, read_orientation
from handlers.shared.pictures.formats import refuse_variant
from handlers.shared.pictures.picture import LARGEST_PROFILE, BrokenError, Picture, check_parts

MARKER = re.compile(rb"\xff+([^\x00\xff])")
"""Fill bytes may stand before a marker; decoders pass over what else does not belong there."""
MARKER_IN_SCAN = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
"""Inside a scan FF 00 is a byte of data, and D0 to D7 are places to start again."""
START, END, SCAN, COMMENT = 0xD8, 0xD9, 0xDA, 0xFE
WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
EXIF_SEGMENT, PROFILE_SEGMENT, ADOBE_SEGMENT = 0xE1, 0xE2, 0xEE
NOT_FOR_THE_DECODER = frozenset({*range(0xE1, 0xF0), COMMENT} - {ADOBE_SEGMENT})
"""Libjpeg needs Adobe's to know the colours; JFIF's says the density only, but costs nothing."""
FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
PROGRESSIVE = 0xC2
SHOWN_BY_BROWSERS = frozenset({0xC0, 0xC1, PROGRESSIVE})
"""Baseline, extended, progressive; the others are lossless, hierarchical or arithmetic-coded."""
PROFILE_HEADER = b"ICC_PROFILE\0"
PIXEL_BYTES = 8
"""Pillow's image with 4 bytes a pixel, and the array of 3 that is made of it; the rest is rounding up."""
COEFFICIENT_BYTES = 2


@dataclass
class _Header:
    """What was met before the first scan."""

    frame: bytes = b""
    progressive: bool = False
    orientation: int | None = None
    profile: list[tuple[int, bytes]] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    dropped: bool = False


@dataclass(frozen=True, kw_only=True)
class Jpeg(Picture):
    """A picture that libjpeg can decode at a smaller scale."""

    components: int
    """1 is grey, 3 are colours, 4 are inks."""

    @property
    def is_plain(self) -> bool:
        """Libjpeg gives RGB as it is to be seen; inks have to be inverted or not, which Pillow knows."""
        return self.components in (1, 3) and self.orientation == 1


def read_jpeg(data: bytes, limits: Mapping[str, int]) -> Jpeg:
    """What the segments say; RequestError or BrokenError for what is not decoded."""
    header = _Header()
    for parts, (marker, start, end) in enumerate(_walk(data)):
        check_parts(parts, limits, "segments")
        if marker == SCAN:
            if not header.frame:
                raise BrokenError("it has a scan before the size")
            scan_components = data[start] if start < end else 0
            return _to_jpeg(data, header, scan_components, start, end, limits)
        _note(header, marker, data[start:end])
        if marker in NOT_FOR_THE_DECODER:
            header.dropped = True
        elif marker not in WITHOUT_LENGTH:
            header.kept.append(b"\xff%c" % marker + data[start - 2 : end])
    raise BrokenError("it ends before its pixels")


def _walk(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start of its payload, end) of all segments up to and with the first scan's header."""
    place = 2
    while found := MARKER.search(data, place):
        marker, place = found[1][0], found.end()
        if marker == END:
            return
        if marker in WITHOUT_LENGTH:
            yield marker, place, place
            continue
        end = place + int.from_bytes(data[place : place + 2], "big")
        if end < place + 2 or end > len(data):
            return
        yield marker, place + 2, end
        place = end


def _note(header: _Header, marker: int, payload: bytes) -> None:
    if marker in FRAMES:
        if header.frame:
            raise BrokenError("it says its size twice")
        if marker not in SHOWN_BY_BROWSERS or payload[:1] != b"\x08":
            raise refuse_variant(
                "a JPEG that is lossless, arithmetic-coded or of more than 8 bits",
                instead="send one that browsers show",
            )
        header.frame, header.progressive = payload, marker == PROGRESSIVE
    elif marker == EXIF_SEGMENT and header.orientation is None and payload.startswith(HEADER):
        header.orientation = read_orientation(payload)
    elif marker == PROFILE_SEGMENT and payload.startswith(PROFILE_HEADER) and len(payload) > 14:
        header.profile.append((payload[12], payload[14:]))


def _to_jpeg(
    data: bytes, header: _Header, scan_components: int, start: int, end: int, limits: Mapping[str, int]
) -> Jpeg:
    frame = header.frame
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        raise BrokenError("its size is cut off")
    height, width, components = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big"), frame[5]
    samples = 0
    if header.progressive or scan_components < components:
        samples = _count_samples(frame, width, height)
        _check_samples(samples, limits)
        _check_scans(data, end, limits)
    # Without what only costs time and memory to read: comments, thumbnails, more EXIF than there is picture.
    scans = memoryview(data)[start - 4 :]
    rest = b"".join([b"\xff\xd8", *header.kept, scans]) if header.dropped else data
    return Jpeg(
        format="JPEG",
        data=rest,
        width=width,
        height=height,
        components=components,
        pixel_bytes=PIXEL_BYTES,
        # All coefficients are kept until the last scan has been read.
        extra_bytes=samples * COEFFICIENT_BYTES,
        orientation=header.orientation or 1,
        profile=_join_profile(header.profile),
    )


def _check_samples(samples: int, limits: Mapping[str, int]) -> None:
    if samples > limits["jpeg_samples"]:
        raise RequestError(
            f"the image is a JPEG in several scans, of which {samples} samples would be kept; at most "
            f"{limits['jpeg_samples']} are: send it as a baseline JPEG, or smaller",
            status=413,
        )


def _check_scans(data: bytes, place: int, limits: Mapping[str, int]) -> None:
    """A scan of 13 bytes may make the decoder visit every coefficient again."""
    scans, segments = 1, 0
    while found := MARKER_IN_SCAN.search(data, place):
        place, segments = found.end(), segments + 1
        if found[1][0] == END:
            return
        check_parts(segments, limits, "segments")
        scans += found[1][0] == SCAN
        if scans > limits["jpeg_scans"]:
            raise RequestError(
                f"the image is a JPEG of more than {limits['jpeg_scans']} scans; encoders write 3 to 18",
                status=413,
            )
        if found[1][0] not in WITHOUT_LENGTH:
            place += int.from_bytes(data[place : place + 2], "big")


def _count_samples(frame: bytes, width: int, height: int) -> int:
    """Of all components, in whole blocks; each has a share of the pixels by its sampling factors."""
    factors = [(byte >> 4, byte & 15) for byte in frame[7 : 6 + 3 * frame[5] : 3]]
    widest = max((across for across, _ in factors), default=1) or 1
    highest = max((down for _, down in factors), default=1) or 1
    across, down = -(-width // (8 * widest)) * 8, -(-height // (8 * highest)) * 8
    return sum(across * horizontal * down * vertical for horizontal, vertical in factors)


def _join_profile(parts: list[tuple[int, bytes]]) -> bytes | None:
    """The profile that several segments hold, in the order they say."""
    whole = b"".join(part for _, part in sorted(parts))
    return whole if 0 < len(whole) <= LARGEST_PROFILE else None
