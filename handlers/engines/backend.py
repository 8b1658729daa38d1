"""Reads BACKEND: `openvino` for all models, or `bert=eager,resnet50=openvino`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handlers.engines import ENGINES
from handlers.engines.sets import SETS

EXAMPLE = "bert=eager,resnet50=openvino"
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


def find_asked(chosen: Mapping[str, str], model: str, package_set: str) -> str:
    """What shall compute one model; what is not named, the first of the package set."""
    return chosen.get(model, chosen.get(ALL, SETS[package_set][0]))


def find_missing(folders: Sequence[str] | None = None) -> frozenset[str]:
    """Those that cannot be imported here, or by a Python that looks in these folders."""
    return frozenset(name for name, engine in ENGINES.items() if not engine.is_installed(folders))
