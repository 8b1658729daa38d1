"""What one request may cost in a worker, how long a batch may take at worst, and what follows from both.

Each limit's name is one that the model's handler knows; the handler refuses what is beyond it.
TorchServe kills the worker that answers later than its response time-out, and fails the whole batch; so no
batch may come near it. The figures are estimates for planning: a worker times its own model when it loads
(handlers/shared/work.py) and refuses what the machine at hand does not compute in time.
"""

from __future__ import annotations

import math

from config.definitions import ModelDefinition
from config.plan import Setting, Settings

BATCH_S = 60
"""The longest a batch of texts may take, and so a request: who waits longer has given up."""

TIMES = 3
"""Response time-out ÷ worst batch: computed once, once more item by item where one of its requests fails,
and once to spare."""

MIN_TIMEOUT_S = 60
"""A machine that stalls for some seconds must not lose its workers."""

PICTURE_S = 2.1
"""2 s of a core are the most that decoding one picture may take (docs/requests.md), 0.1 s is ResNet50's own:
0.04 s in FP32 on a core with AVX-512 (seen), and twice that without."""

TOKEN_MS = {"fp32": 1.7, "bf16": 0.87, "int8": 0.48}
"""Of one core with AVX-512 for a token of BERT-base (seen on the slower of two hosts)."""

CHARACTER_US = 2.2
"""Tokenising, at worst: words of 99 letters (seen)."""

CHARACTERS_PER_TOKEN = 20
"""As in handlers/shared/texts.py: how much of a text is read."""


PICTURE: Settings = {
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
        reason="24 megapixels at 8 bytes each (Pillow's image and the one that is resized), 12 of WebP (20)",
    ),
    "parts": Setting(
        value=16_384,
        reason="segments, chunks or blocks of a file: 16 MiB in pieces of 1 KiB; each costs some Python",
    ),
}
"""Measured with the worst file of each format at its limit: no body of 16 MiB takes 2 s or 400 MiB."""


def plan_response_timeout(model: ModelDefinition, batch: int, models: int) -> Setting:
    """Seconds after which a worker is taken for hung."""
    beside = f"{models} models on the same cores × " if models > 1 else ""
    if "decode_mib" not in model.limits:
        reason = f"{TIMES} × the {BATCH_S} s that the handler lets a batch take at most"
        return Setting(value=TIMES * BATCH_S, reason=f"{reason}; a late batch gets its worker killed")
    seconds = TIMES * models * batch * PICTURE_S
    reason = f"{TIMES} × the worst batch: {beside}{batch} pictures × {PICTURE_S} s of a core"
    return Setting(
        value=max(MIN_TIMEOUT_S, math.ceil(seconds)),
        reason=f"{reason}, at least {MIN_TIMEOUT_S}; a late batch gets its worker killed",
    )


def plan_text_work(model: ModelDefinition, precision: str, batch: int, models: int) -> dict[str, Setting]:
    """The limits of texts; each is one that the handler knows by this name."""
    longest, texts = model.token_lengths[-1], model.max_texts_per_request
    characters = batch * texts * longest * CHARACTERS_PER_TOKEN
    reading_s = math.ceil(characters * CHARACTER_US / 1e6)
    batch_s = max(1, BATCH_S // models - reading_s)
    legal = batch * texts * longest
    in_time = int(batch_s * 1000 / TOKEN_MS[precision])
    return {
        "batch_s": Setting(
            value=batch_s,
            reason=f"{BATCH_S} s ÷ {models} models on the same cores, less {reading_s} s to tokenise "
            f"{characters} characters: what the model may take of a batch, timed when it loads",
        ),
        "tokens_per_batch": Setting(
            value=min(legal, in_time),
            reason=f"{in_time} tokens take {batch_s} s of a core (BERT-base in {precision}: "
            f"{TOKEN_MS[precision]} ms a token), and {batch} requests have at most {legal}; what is beyond "
            "is refused (503), not answered too late",
        ),
        "json_values": Setting(
            value=texts * (longest * CHARACTERS_PER_TOKEN + 1) + 1,
            reason=f"commas and brackets: {texts} texts × {longest * CHARACTERS_PER_TOKEN} characters that "
            "are read, if each were a comma, and the JSON's own; parsed, each can cost 200 bytes",
        ),
    }


def plan_limits(model: ModelDefinition, precision: str, batch: int, models: int) -> Settings:
    """Those that the model's handler knows, of `models` on the same cores."""
    planned: Settings = {}
    if "decode_mib" in model.limits:
        planned = PICTURE
    elif "tokens_per_batch" in model.limits and model.token_lengths:
        planned = plan_text_work(model, precision, batch, models)
    return {name: one for name, one in planned.items() if name in model.limits}
