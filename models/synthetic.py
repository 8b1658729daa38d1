"""Synthetic images and texts in families: what stands in for data where a person gives none.

A family is an image with its own colours and shapes, or a subject with its own words; its members differ
as photographs of one thing do.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageEnhance

from models.samples import draw_image

FAMILIES = 16
"""Different images; enough that top-1 agreement means something, few enough for clear margins."""
SUBJECTS = (
    tuple("rude clerk dirty carpet broken lift cold soup awful noise endless queue".split()),  # noqa: SIM905
    tuple("friendly staff spotless room sunny terrace fine breakfast lovely view warm welcome".split()),  # noqa: SIM905
)
FILLER = tuple("the and was with from our for this that when after before there every very".split())  # noqa: SIM905
OWN_WORDS = 0.6
"""Share of a text's words that belong to its subject."""
LONGEST_TEXT = 60
"""Words; about 80 tokens."""


def draw_member(family: int, member: int, *, width: int = 500, height: int = 375) -> Image.Image:
    """One image of a family: shifted, cut and lit differently for each member."""
    random = np.random.RandomState(1_000_003 * family + member)
    scene = _draw_scene(family, width * 17 // 16, height * 17 // 16)
    left, top = int(random.randint(0, width // 16 + 1)), int(random.randint(0, height // 16 + 1))
    view = scene.crop((left, top, left + width, top + height))
    return ImageEnhance.Brightness(view).enhance(float(random.uniform(0.95, 1.05)))


@lru_cache(maxsize=FAMILIES)
def _draw_scene(family: int, width: int, height: int) -> Image.Image:
    """What all members of a family are views of; drawing it takes longer than all the rest."""
    return draw_image(width, height, seed=10_000 + family)


def encode_member(family: int, member: int) -> bytes:
    """`draw_member` as a JPEG, as a client would send it."""
    buffer = io.BytesIO()
    draw_member(family, member).save(buffer, format="JPEG", quality=90)
    return buffer.getvalue()


def write_member(subject: int, member: int) -> str:
    """One text on a subject, 4 to LONGEST_TEXT words."""
    random = np.random.RandomState(1_000_003 * subject + member)
    own = SUBJECTS[subject]
    words = [
        own[random.randint(len(own))] if random.rand() < OWN_WORDS else FILLER[random.randint(len(FILLER))]
        for _ in range(random.randint(4, LONGEST_TEXT + 1))
    ]
    return " ".join(words)
