"""Real photographs to send, from a package that ships them."""

from __future__ import annotations

from pathlib import Path

SIZE = (500, 375)
"""Width × height in pixels of a typical ImageNet photograph."""
QUALITY = 90


def write_photo(path: Path) -> Path:
    """scikit-learn's china.jpg (640×427) cut and scaled to 500×375, as a JPEG."""
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_image

    photo = Image.fromarray(load_sample_image("china.jpg"))
    ImageOps.fit(photo, SIZE, Image.Resampling.LANCZOS).save(path, format="JPEG", quality=QUALITY)
    return path
