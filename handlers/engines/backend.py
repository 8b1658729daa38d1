"""Reads BACKEND: `ipex` for all models, or `bert=eager,resnet50=ipex`."""

from __future__ import annotations

from collections.abc import Mapping

from handlers.engines import DEFAULT, ENGINES

EXAMPLE = "bert=eager,resnet50=ipex"
ALL = ""
"""The key of what holds for every model that is not named."""


def parse_backend(text: str) -> dict[str, str]:
    """Engine by model; ValueError for what is none, or two for one model."""
    chosen: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        name, _, engine = word.rpartition("=")
        if engine not in ENGINES:
            raise ValueError(
                f"BACKEND must be one of {', '.join(ENGINES)}, or by model, as {EXAMPLE}: got {text}"
            )
        if name in chosen:
            raise ValueError(f"BACKEND must have one engine for each model, as {EXAMPLE}: got {text}")
        chosen[name] = engine
    return chosen


def render_backend(chosen: Mapping[str, str]) -> str:
    """In one order, so that the same choice is the same plan."""
    return ",".join(f"{name}={engine}" if name else engine for name, engine in sorted(chosen.items()))


def find_engine(chosen: Mapping[str, str], model: str) -> str:
    """What computes one model."""
    return chosen.get(model, chosen.get(ALL, DEFAULT))
