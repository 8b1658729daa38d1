"""What the ladder sends: cuts of real photographs, or the mixed texts of `make targets`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from loadtest.ladder.rungs import RESNET50
from loadtest.payloads import JPEG, Payload, read_list, write_list, write_texts
from loadtest.photos import QUALITY, SCENES, SIZE
from loadtest.rows.bert import MIXED_TEXTS, SEED
from loadtest.texts import CountTokens, read_token_counter, write_mixed_texts

CUTS = 16
"""Of each scene; the whole scenes come first, the first as `make targets` sends it."""
ZOOMS = (0.6, 0.9)
"""Of a cut's sides to the scene's."""
GROUP = 64
"""Texts of every run of so many have the whole mix of lengths, so that a slow server, which gets through a
few dozen in a turn, is sent the same mix as a fast one."""


def write_payloads(folder: Path, model: str, store: Path) -> Path:
    """A folder with a list; each run of the ladder sends the same bytes."""
    if model == RESNET50:
        return write_cuts(folder, model)
    count = read_token_counter(store / f"{model}.mar")
    texts = write_mixed_texts(MIXED_TEXTS, count, seed=SEED)
    return write_texts(folder, arrange_evenly(texts, count, group=GROUP), model=model)


def arrange_evenly(texts: Sequence[str], count_tokens: CountTokens, *, group: int) -> list[str]:
    """In groups that each hold one text of every `len / group` neighbours by length, in random order.

    From the longest down, the group with the fewest tokens so far gets the longest of the next neighbours.
    """
    chance, ranked = random.Random(SEED), sorted(texts, key=count_tokens, reverse=True)
    count = len(texts) // group
    groups: list[list[str]] = [[] for _ in range(count)]
    tokens = [0] * count
    for first in range(0, count * group, count):
        fewest = sorted(range(count), key=tokens.__getitem__)
        for place, text in zip(fewest, ranked[first : first + count], strict=True):
            groups[place].append(text)
            tokens[place] += count_tokens(text)
    # A slow server sees the first groups only: the one with the longest text of all comes last.
    mean = sum(tokens) / count
    order = sorted(range(count), key=lambda number: abs(tokens[number] - mean))
    return [text for number in order for text in chance.sample(groups[number], group)]


def pick_each_length(folder: Path, model: str, store: Path) -> list[Payload]:
    """One text of each number of tokens; no pictures, which have one size."""
    if model == RESNET50:
        return []
    count = read_token_counter(store / f"{model}.mar")
    texts = {count((folder / one.file).read_text(encoding="utf-8")): one for one in read_list(folder)}
    return list(texts.values())


def write_cuts(folder: Path, model: str) -> Path:
    """Each scene whole and in random cuts, all scaled to one size, so that they cost the same."""
    folder.mkdir(parents=True, exist_ok=True)
    chance, payloads = random.Random(SEED), []
    for number in range(CUTS):
        zoom = 1.0 if number == 0 else chance.uniform(*ZOOMS)
        place = (0.5, 0.5) if number == 0 else (chance.random(), chance.random())
        for scene in SCENES:
            file = f"{number:02d}-{Path(scene).stem}.jpg"
            _write_cut(folder / file, scene, zoom=zoom, place=place)
            payloads.append(Payload(file=file, content_type=JPEG, path=f"/predictions/{model}"))
    return write_list(folder, payloads)


def _write_cut(path: Path, scene: str, *, zoom: float, place: tuple[float, float]) -> None:
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_image

    photo = Image.fromarray(load_sample_image(scene))
    width, height = (round(zoom * side) for side in photo.size)
    left, top = (
        round(at * (whole - part)) for at, whole, part in zip(place, photo.size, (width, height), strict=True)
    )
    cut = photo.crop((left, top, left + width, top + height))
    fitted = ImageOps.fit(cut, SIZE, Image.Resampling.LANCZOS)
    fitted.save(path, format="JPEG", quality=QUALITY)
