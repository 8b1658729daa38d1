"""What one request may cost in a worker; the handler refuses what is beyond, by the limit's name.

Each name is one that the handler of that kind of model knows (`LIMITS` in handlers/): it has its own values
for servers without a plan, and these replace them.
"""

from __future__ import annotations

from config.definitions import ModelDefinition
from config.plan import Setting, Settings
from config.rules.work import plan_text_work


def plan_limits(model: ModelDefinition, precision: str, batch: int, models: int) -> Settings:
    """By the kind of the model, of `models` on the same cores; a kind without limits has none."""
    if model.kind == "image":
        return _plan_image()
    if model.kind == "text" and model.token_lengths:
        return plan_text_work(model, precision, batch, models)
    return {}


def _plan_image() -> Settings:
    """Measured with the worst file of each format at its limit: no body of 16 MiB takes 2 s or 400 MiB."""
    return {
        "pixels": Setting(
            value=24_000_000,
            reason="a camera's; an interlaced PNG of 16 bits a channel, the slowest, takes 1.4 s of a core",
        ),
        "jpeg_pixels": Setting(
            value=128_000_000,
            reason="telephones make up to 108 million; decoded at an eighth of their size",
        ),
        "jpeg_samples": Setting(
            value=72_000_000,
            reason="what a JPEG in several scans keeps until the last one, 144 MB: 24 megapixels in full "
            "colour, 48 as cameras store it",
        ),
        "jpeg_scans": Setting(
            value=32,
            reason="encoders write 3 to 18, and each visits every sample again: 32 took 1.4 s",
        ),
        "side_pixels": Setting(value=65_535, reason="the longest side that a JPEG can say"),
        "decode_mib": Setting(
            value=240,
            reason="24 megapixels at 8 bytes each (Pillow's image and the one that is resized), 12 of "
            "WebP (20)",
        ),
        "parts": Setting(
            value=16_384,
            reason="segments, chunks or blocks of a file: 16 MiB in pieces of 1 KiB; each costs some Python",
        ),
    }
