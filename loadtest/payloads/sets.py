"""Everything that can be sent, by name, or a person's own files; and what is sent where none is named."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.payloads.payload import JSON, PLAIN, Payload, make_plain_text, make_text
from loadtest.payloads.photos import FORMS, IMAGENET, SCENES, View, list_views, make_photo
from loadtest.payloads.texts import (
    draw_lengths,
    holds_tokenizer,
    read_token_counter,
    write_exactly,
    write_sentence,
)

TYPES = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp",
    ".bmp": "image/bmp", ".json": JSON, ".bin": "application/octet-stream", ".txt": PLAIN,
}  # fmt: skip
"""Of the files of a folder, one request each; of .txt one a line."""
USUAL = {"bert": "texts", "resnet50": "photos"}
"""Model → what it is sent where its archive is not at hand, as on another machine."""
EXAMPLE = "example"
"""The archive's own, alone."""
MOST = 200
"""More payloads of a folder are thinned evenly; each is held in the generator's memory."""
SEED = 24
TEXT_COUNT = 32
MEDIAN_WORDS, WORDS_SPREAD = 22, 0.9
"""Lengths are log-normal, as comments and reviews are: half below 22 words, a few above 100."""
CUTS = 16
"""Of each scene; the whole scenes come first, the first as `one-photo`."""
EQUAL = [128] * 64
GROUPS, GROUP = 8, 64
"""Every group of so many texts has the whole mix of lengths, so that a slow server, which gets through a few
dozen in a turn, is sent the same mix as a fast one."""
MIXED = [tokens for group in range(GROUPS) for tokens in draw_lengths(GROUP, seed=SEED + group)]
"""Numbers of tokens."""
MIXTURE_TEXTS, MIXTURE_VIEWS = 128, 8
"""About as many photographs: each scene in each form, in so many views."""


Archives = Mapping[str, Path]
"""Model → the archive whose tokenizer counts."""


def make_payloads(
    asked: str, *, model: str, archives: Archives | None = None, shares: Mapping[str, float] | None = None
) -> list[Payload]:
    """A set by its name, what suits the model, or the files of a folder; LoadTestError says what is known.

    Sets of so many tokens need the model's archive. `mixture` takes several models, with blanks between, and
    their shares of the requests.
    """
    if shares:
        return make_mix(shares, archives or {})
    asked = asked or find_usual(model, archives or {})
    if asked in SETS:
        return SETS[asked](model, archives or {})
    if not Path(asked).is_dir():
        raise LoadTestError(f"PAYLOADS must be one of {', '.join(SETS)}, or a folder: got {asked}")
    return read_folder(Path(asked), model=model)


def find_archive(model: str, archives: Archives) -> Any:
    """What it holds (a `Packed`); LoadTestError where it is not at hand."""
    if model not in archives:
        raise LoadTestError(f"PAYLOADS must be a folder or a set that needs no archive: got none of {model}")
    # Not above: docker/loadtest has of the kit what Locust alone needs, and no archives.
    from server.archives import read_archive

    return read_archive(archives[model])


def find_usual(model: str, archives: Archives) -> str:
    """The set by the archive's example: photographs for a classifier of images, texts for what reads plain
    ones; nobody knows what else another model takes. LoadTestError without archive and by an unknown name."""
    if model not in archives and model in USUAL:
        return USUAL[model]
    archive = find_archive(model, archives)
    from handlers.answers import read_scores

    example = archive.definition.example
    if example.content_type.startswith("image/") and any(read_scores(example.expected)):
        return "photos"
    plain = example.content_type.startswith("text/plain") and holds_tokenizer(archive.path)
    return "plain-texts" if plain else EXAMPLE


def read_folder(folder: Path, *, model: str) -> list[Payload]:
    """Images, .json and .bin files as they are; each line of a .txt file as a text."""
    files = {file: file.suffix.lower() for file in sorted(folder.rglob("*")) if file.is_file()}
    types = {file: TYPES[suffix] for file, suffix in files.items() if suffix in TYPES}
    kinds = {kind.partition("/")[0]: file.name for file, kind in types.items()}
    if len(kinds) != 1:
        wanted = f"images, or .json and .bin, or .txt files ({', '.join(TYPES)})"
        got = " and ".join(kinds.values()) or "none of them"
        raise LoadTestError(f"{folder} must hold {wanted}: got {got}")
    found = [
        make_text(f"{file.name}:{number}", line.strip(), model=model)
        for file in types
        if "text" in kinds
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip()
    ] or [
        Payload(name=str(file.relative_to(folder)), body=file.read_bytes(), content_type=kind, model=model)
        for file, kind in types.items()
        if "text" not in kinds
    ]
    if not found:
        raise LoadTestError(f"{folder} must hold at least one text: got only empty lines")
    return found[:: -(-len(found) // MOST)]


def make_photos(model: str, _: Archives, views: Sequence[View] | None = None) -> list[Payload]:
    """Each scene in each form, each cut a little differently, so that no two answers are alike."""
    chosen = views or list_views(len(FORMS), least=0.8)
    return [
        make_photo(scene, form, view, model=model)
        for scene in SCENES
        for form, view in zip(FORMS, chosen, strict=True)
    ]


def make_cuts(model: str, _: Archives) -> list[Payload]:
    """Each scene whole and in random cuts, all scaled to one size, so that they cost the same."""
    return [
        make_photo(scene, IMAGENET, view, model=model, name=f"{number:02d}")
        for number, view in enumerate(list_views(CUTS))
        for scene in SCENES
    ]


def make_example(model: str, archives: Archives) -> list[Payload]:
    """The request that proves a worker right: of any model a body that it takes."""
    packed = find_archive(model, archives)
    kind = packed.definition.example.content_type
    return [Payload(name=EXAMPLE, body=packed.body, content_type=kind, model=model)]


def make_texts(model: str, _: Archives, make: Callable[..., Payload] = make_text) -> list[Payload]:
    """Opinions in log-normal lengths."""
    chance, normal = random.Random(SEED), NormalDist()
    # Evenly spaced quantiles instead of draws: so few draws would make another mix of each seed.
    spread = [normal.inv_cdf((number + 0.5) / TEXT_COUNT) for number in range(TEXT_COUNT)]
    counts = [round(MEDIAN_WORDS * math.exp(WORDS_SPREAD * one)) for one in spread]
    return [
        make(f"{number:02d}-{count}-words", write_sentence(count, chance), model=model)
        for number, count in enumerate(counts)
    ]


def make_exact_texts(model: str, archives: Archives, lengths: Sequence[int]) -> list[Payload]:
    """Different texts of given numbers of tokens."""
    count, chance = read_token_counter(find_archive(model, archives).path), random.Random(SEED)
    return [
        make_plain_text(f"{number:03d}-{tokens}-tokens", write_exactly(tokens, count, chance), model=model)
        for number, tokens in enumerate(lengths)
    ]


def make_mixture(models: str, archives: Archives) -> list[Payload]:
    """Texts of all lengths, photographs of all forms, or the example as often, by what suits each model."""
    found: list[Payload] = []
    for model in models.split():
        usual = find_usual(model, archives)
        if usual == EXAMPLE:
            found += make_example(model, archives) * MIXTURE_TEXTS
        elif usual != "photos":
            found += make_exact_texts(model, archives, draw_lengths(MIXTURE_TEXTS, seed=SEED))
        else:
            views = list_views(MIXTURE_VIEWS + len(FORMS))
            for first in range(MIXTURE_VIEWS):
                found += make_photos(model, archives, views[first : first + len(FORMS)])
    return found


def make_mix(shares: Mapping[str, float], archives: Archives) -> list[Payload]:
    """Of the mixture of each model so many that every round of all payloads keeps the shares."""
    own = {model: make_mixture(model, archives) for model in sorted(shares)}
    whole = min(len(each) / shares[model] for model, each in own.items())
    return [one for model, each in own.items() for one in each[: max(1, round(whole * shares[model]))]]


def pick_each_length(payloads: Sequence[Payload], archive: Path) -> list[Payload]:
    """One plain text of each number of tokens; no pictures, which have one size."""
    written = {one: one.body.decode() for one in payloads if one.content_type == PLAIN}
    if not written:
        return []
    count = read_token_counter(archive)
    return list({count(text): one for one, text in written.items()}.values())


SETS: dict[str, Callable[[str, Archives], list[Payload]]] = {
    "photos": make_photos,
    "texts": make_texts,
    "plain-texts": lambda model, archives: make_texts(model, archives, make_plain_text),
    EXAMPLE: make_example,
    # For figures that others made with one image, or one sentence.
    "one-photo": lambda model, _: [make_photo(SCENES[0], IMAGENET, model=model)],
    "one-text": lambda model, _: [
        make_text("20-words", write_sentence(20, random.Random(SEED)), model=model)
    ],
    "cuts": make_cuts,
    "texts-128": lambda model, archives: make_exact_texts(model, archives, EQUAL),
    "texts-grouped": lambda model, archives: make_exact_texts(model, archives, MIXED),
    "mixture": make_mixture,
}
