"""A folder of request bodies with a list of what each is, and the order in which they are sent."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.errors import LoadTestError

LIST_FILE = "payloads.json"
JPEG = "image/jpeg"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One request body."""

    file: str
    """Its name in the folder."""
    content_type: str
    """How it is sent."""
    path: str
    """The URL's path it is sent to."""


def write_list(folder: Path, payloads: Sequence[Payload]) -> Path:
    """Put the list beside the bodies; the folder."""
    text = json.dumps([asdict(payload) for payload in payloads], indent=1)
    (folder / LIST_FILE).write_text(text + "\n", encoding="utf-8")
    return folder


def read_list(folder: Path) -> list[Payload]:
    """The payloads of a folder; LoadTestError when there are none."""
    try:
        payloads = [Payload(**raw) for raw in json.loads((folder / LIST_FILE).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as problem:
        raise LoadTestError(f"{folder / LIST_FILE}: no list of payloads: {problem}") from problem
    if not payloads:
        raise LoadTestError(f"{folder / LIST_FILE} must name at least one payload: got none")
    return payloads


def write_texts(folder: Path, texts: Sequence[str], *, model: str) -> Path:
    """A folder of plain texts for one model."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number:04d}.txt" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    path = f"/predictions/{model}"
    return write_list(folder, [Payload(file=name, content_type=TEXT, path=path) for name in names])


def shuffle_endlessly(count: int, *, seed: int) -> Iterator[int]:
    """0 … count − 1 in random order, all of them before any comes again; the same seed, the same order."""
    chance = random.Random(seed)
    while True:
        yield from chance.sample(range(count), count)
