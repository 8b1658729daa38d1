"""The answer that FP32 eager gives to the example of a staged archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from handlers.answers import Tolerance, find_fault
from handlers.backends.loader import LoadedModel, open_loader
from handlers.request import read_request
from handlers.shared.options import OPTIONAL_STEPS, LoadOptions
from models.errors import BuildError
from models.handlers import check_replies, load_handler
from models.request import BASELINE

SIGNIFICANT_DIGITS = 4
"""Of every expected number: below the tolerance, above the last bits of another CPU's sums."""


def answer_example(staging: Path) -> Any:
    """The JSON of the answer of the staged handler in eager FP32, its floats rounded.

    Without the load's steps: they warm and check every shape, and this is one request of one shape.
    """
    handler = load_handler(staging)
    options = LoadOptions(precision=BASELINE, backend="eager", threads=None, off=frozenset(OPTIONAL_STEPS))
    loader = open_loader(options.backend)
    handler.take(LoadedModel(task=handler, options=options, loader=loader, model=handler.load_model()))
    headers = {"Content-Type": handler.definition.example.content_type}
    (reply,) = handler.answer([read_request({"body": handler.example}, headers)])
    check_replies([reply], f"the example of {handler.definition.name}")
    answer = round_floats(json.loads(reply.body))
    if fault := find_fault(answer, answer, Tolerance(relative=0.0, absolute=0.0)):
        raise BuildError(f"the example's answer proves nothing: {fault}")
    return answer


def round_floats(value: Any) -> Any:
    """Of a JSON value, at any depth."""
    if isinstance(value, dict):
        return {key: round_floats(one) for key, one in value.items()}
    if isinstance(value, list):
        return [round_floats(one) for one in value]
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
