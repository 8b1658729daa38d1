"""The sample requests that prove a worker right: a drawn image and a sentence, the same everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SAMPLE_TEXT = (
    "The room was quiet, the staff were kind and the breakfast was the best we had on the whole journey."
)


def draw_image(width: int, height: int, *, seed: int) -> Image.Image:
    """An image with gradients, edges, shapes and some noise, decided by `seed` alone."""
    random = np.random.RandomState(seed)  # the legacy generator's stream is frozen across numpy versions
    rows = np.linspace(0, 1, height)[:, None, None]
    columns = np.linspace(0, 1, width)[None, :, None]
    corners = random.randint(0, 256, (4, 3))
    top = corners[0] * (1 - columns) + corners[1] * columns
    bottom = corners[2] * (1 - columns) + corners[3] * columns
    sky = top * (1 - rows) + bottom * rows + random.normal(0, 6, (height, width, 3))
    image = Image.fromarray(sky.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for number in range(24):
        x, y = int(random.randint(0, width)), int(random.randint(0, height))
        w, h = (int(side) for side in random.randint(8, max(9, width // 3), 2))
        colour = tuple(int(level) for level in random.randint(0, 256, 3))
        (draw.ellipse if number % 2 else draw.rectangle)((x, y, x + w, y + h), fill=colour)
    return image


def write_sample_image(path: Path) -> None:
    """A 500×375 JPEG, the size of a typical ImageNet photograph."""
    draw_image(500, 375, seed=2026).save(path, format="JPEG", quality=90, subsampling=0)
