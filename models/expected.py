"""Writes the canary of a staged archive: its request, and the answer that FP32 eager gives to it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from handlers.backends.loader import LoadedModel, open_loader
from handlers.request import Request
from handlers.shared.options import OPTIONAL_STEPS, LoadOptions
from models.definition import ModelDefinition
from models.errors import BuildError
from models.handlers import load_handler
from models.kinds.prepared import Prepared
from models.request import BASELINE

SIGNIFICANT_DIGITS = 4
"""Of the canary's expected probabilities: below the tolerance, above the last bits of another CPU's sums."""


def write_canary(definition: ModelDefinition, prepared: Prepared, staging: Path) -> None:
    """canary.json, with what each precision may differ by."""
    canary: dict[str, Any] = {
        "file": prepared.canary_file,
        "content_type": prepared.canary_content_type,
        "tolerance": {
            name: {"relative": recipe["canary_relative"], "absolute": recipe["canary_absolute"]}
            for name, recipe in definition.precisions.items()
        },
    }
    # Written twice: the handler that gives the expected answer reads the file's name from it.
    write_json(staging / "canary.json", canary)
    expected = answer_canary(staging)
    write_json(staging / "canary.json", {**canary, "expected": expected})


def answer_canary(staging: Path) -> dict[str, float]:
    """Label → score that the packed handler answers in eager FP32, best first, at most five.

    Without the load's steps: they warm and check every shape, and this is one request of one shape.
    """
    handler = load_handler(staging)
    options = LoadOptions(precision=BASELINE, backend="eager", threads=None, off=frozenset(OPTIONAL_STEPS))
    loader = open_loader(options.backend)
    handler.take(LoadedModel(task=handler, options=options, loader=loader, model=handler.load_model()))
    (reply,) = handler.answer([Request(content=handler.example)])
    if reply.status != 200:
        raise BuildError(f"the canary of {handler.definition.name} is refused: {reply.body.decode()}")
    return _expected(json.loads(reply.body))


def _expected(answer: Any) -> dict[str, float]:
    pairs = (
        list((answer["scores"] if "scores" in answer else answer["probabilities"]).items())
        if isinstance(answer, dict)
        else [(one["label"], one.get("probability", one.get("score"))) for one in answer]
    )
    # ImageNet has two classes "crane" and two "maillot": by its name such an answer cannot be told apart.
    times = Counter(label for label, _ in pairs)
    best = sorted((pair for pair in pairs if times[pair[0]] == 1), key=lambda pair: -pair[1])[:5]
    if not best:
        raise BuildError(f"the canary's best classes must have different names: got {', '.join(times)}")
    return {label: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for label, value in best}


def write_json(path: Path, value: Any) -> None:
    """As every JSON file of an archive is written: the same value, the same bytes."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
