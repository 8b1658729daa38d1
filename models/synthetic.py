"""Synthetic pictures and texts in families: what stands in for data where a person gives none.

A family is a picture with its own colours and shapes, or a subject with its own words; its members differ
as photographs of one thing do. Random weights get a head that tells the families apart, so that
answers have a trained network's margins and a precision's damage can be judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageEnhance

from models.canary import draw_image

FAMILIES = 20
"""Different subjects; enough that top-1 agreement means something, few enough for clear margins."""
SUBJECTS = (
    "friendly staff spotless room sunny terrace delicious breakfast wonderful view warm welcome",
    "rude clerk dirty carpet broken lift cold soup awful noise endless queue",
)
FILLER = "the and was with from our for this that when after before again there every other only quite very".split()


def draw_member(family: int, member: int, *, width: int = 500, height: int = 375) -> Image.Image:
    """One picture of a family: shifted, cut and lit differently for each member."""
    random = np.random.RandomState(1_000_003 * family + member)
    scene = draw_image(width * 5 // 4, height * 5 // 4, seed=10_000 + family)
    left, top = int(random.randint(0, width // 4 + 1)), int(random.randint(0, height // 4 + 1))
    view = scene.crop((left, top, left + width, top + height))
    return ImageEnhance.Brightness(view).enhance(float(random.uniform(0.85, 1.15)))


def write_member(subject: int, member: int, *, subjects: Sequence[str] = SUBJECTS) -> str:
    """One sentence on a subject; lengths from 4 to 60 words."""
    random = np.random.RandomState(1_000_003 * subject + member)
    own = subjects[subject % len(subjects)].split()
    words = [
        own[random.randint(len(own))] if random.rand() < 0.6 else FILLER[random.randint(len(FILLER))]
        for _ in range(random.randint(4, 61))
    ]
    return " ".join(words)
