"""Inputs for calibration and for the accuracy gate: a person's own, or synthetic ones labelled as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.errors import BuildError
from models.labels import split_lines
from models.synthetic import FAMILIES, SUBJECTS, encode_member, write_member

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LEAST = 8
"""Fewer inputs than this calibrate or judge nothing."""
MOST = 512
"""More take minutes without changing a verdict."""
MOST_LABELLED = 4096
"""To judge by: with labels, more inputs show smaller losses; see models/gate/intervals.py."""
CALIBRATION_IMAGES_PER_FAMILY = 2
HELD_OUT_IMAGES_PER_FAMILY = 5
CALIBRATION_TEXTS = 8
HELD_OUT_TEXTS = 25
"""Each, of every subject; BERT takes 0.2 s of a core for one, and observes it slower still."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Request bodies, as clients would send them."""

    source: str
    """`synthetic`, or the person's folder or file by name."""
    bodies: tuple[bytes, ...]
    labels: tuple[str, ...] | None = None
    """The right class of each body, where known."""


def read_dataset(kind: str, path: Path, *, most_labelled: int = MOST) -> Dataset:
    """Images of a folder (sub-folders name the classes) or a text file (`label<TAB>text` or text a line)."""
    dataset = _read_images(path, most_labelled) if kind == "image" else _read_texts(path, most_labelled)
    if len(dataset.bodies) < LEAST:
        raise BuildError(f"{path} must hold at least {LEAST} inputs: got {len(dataset.bodies)}")
    return dataset


def _read_images(folder: Path, most_labelled: int) -> Dataset:
    if not folder.is_dir():
        raise BuildError(f"images are taken from a folder: got {folder}")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    loose = [file.name for file in files if file.parent == folder]
    nested = bool(files) and not loose
    if loose and len(loose) < len(files):
        raise BuildError(
            f"{folder}: all images must be in folders named by their class, or none: got {loose[0]} beside "
            "such folders"
        )
    chosen = _thin(files, most_labelled if nested else MOST)
    labels = tuple(file.relative_to(folder).parts[0] for file in chosen) if nested else None
    return Dataset(source=folder.name, bodies=tuple(file.read_bytes() for file in chosen), labels=labels)


def _read_texts(file: Path, most_labelled: int) -> Dataset:
    if not file.is_file():
        raise BuildError(f"texts are taken from a file with one a line: got {file}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BuildError(f"{file} must be UTF-8: got {error}") from error
    lines = [line for line in split_lines(text) if line.strip()]
    plain = next((line for line in lines if "\t" not in line), None)
    labelled = bool(lines) and plain is None
    if plain is not None and any("\t" in line for line in lines):
        raise BuildError(
            f"{file}: each line must be label<TAB>text, or none may have a tab: got {plain[:60]!r} beside "
            "lines with one"
        )
    lines = _thin(lines, most_labelled if labelled else MOST)
    if labelled:
        pairs = [line.split("\t", 1) for line in lines]
        return Dataset(
            source=file.name,
            bodies=tuple(text.encode() for _, text in pairs),
            labels=tuple(label.strip() for label, _ in pairs),
        )
    return Dataset(source=file.name, bodies=tuple(line.encode() for line in lines))


def _thin(items: Sequence, most: int) -> list:
    """At most so many items, evenly over all."""
    step = max(1, -(-len(items) // most))
    return list(items[::step])


def split_dataset(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Every other input for calibration, the others held out."""
    return _take(dataset, 0), _take(dataset, 1)


def _take(dataset: Dataset, start: int) -> Dataset:
    labels = None if dataset.labels is None else dataset.labels[start::2]
    return Dataset(source=dataset.source, bodies=dataset.bodies[start::2], labels=labels)


def make_calibration(kind: str) -> Dataset:
    """Synthetic inputs to observe."""
    if kind == "image":
        return Dataset(source="synthetic", bodies=_images(range(CALIBRATION_IMAGES_PER_FAMILY)))
    return Dataset(source="synthetic", bodies=_texts(range(CALIBRATION_TEXTS)))


def make_held_out(kind: str) -> Dataset:
    """Synthetic inputs that neither calibration nor the random weights' head has seen."""
    if kind == "image":
        return Dataset(source="synthetic", bodies=_images(range(100, 100 + HELD_OUT_IMAGES_PER_FAMILY)))
    return Dataset(source="synthetic", bodies=_texts(range(100, 100 + HELD_OUT_TEXTS)))


def _images(members: range) -> tuple[bytes, ...]:
    return tuple(encode_member(family, member) for member in members for family in range(FAMILIES))


def _texts(members: range) -> tuple[bytes, ...]:
    return tuple(
        write_member(subject, member).encode() for member in members for subject in range(len(SUBJECTS))
    )
