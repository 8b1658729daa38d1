"""BATCH and DELAY_MS: one number for all models, or one for each, as `bert=8,resnet50=4`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from config.errors import ConfigError

EXAMPLE = "bert=8,resnet50=4"
ALL = ""
"""Whose number is that of every model."""
_ITEM = re.compile(r"(?:([^=]+)=)?(\d{1,6})")


def parse_by_model(knob: str, text: str) -> dict[str, int]:
    """By model; that of ALL where one number is given."""
    numbers: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        found = _ITEM.fullmatch(word)
        name = (found[1] or ALL) if found else ALL
        if not found or name in numbers or (numbers and ALL in (name, *numbers)):
            raise ConfigError(f"{knob} must be a whole number, or one by model as {EXAMPLE}: got {text}")
        numbers[name] = int(found[2])
    return numbers


def render_by_model(numbers: Mapping[str, int]) -> str:
    """In one order, so that the same numbers are the same plan."""
    return ",".join(f"{name}={number}" if name else str(number) for name, number in sorted(numbers.items()))


def find_number(knob: str, text: str | None, model: str) -> int | None:
    """What was asked for this model."""
    numbers = parse_by_model(knob, text or "")
    return numbers.get(model, numbers.get(ALL))


def check_by_model(knob: str, text: str | None, models: Collection[str], least: int, most: int) -> None:
    """Each number is within its limits, and of a model that is served."""
    for name, number in parse_by_model(knob, text or "").items():
        if models and name not in (ALL, *models):
            raise ConfigError(f"{knob} must name models that are served, {', '.join(models)}: got {name}")
        if not least <= number <= most:
            raise ConfigError(f"{knob} must be {least} to {most}: got {number}")
