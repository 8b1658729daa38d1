"""Which precision each model is served in: the one asked for, or with auto the fastest one timed here.

Whether a precision answers well enough is decided before, by the accuracy gate when the archive is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from config.definitions import ModelDefinition
from config.errors import TimingsError
from config.plan import Inputs, Setting, Settings
from config.rules.requests import AUTO, PRECISIONS
from config.timings import CURE, Timed

MARGIN = 1.05
"""A less exact precision must be this much faster. Medians of some seconds differ by one or two percent from
one time to the next, on shared machines by a few: without a margin two that are equally fast would take
turns from host to host."""

REASONS = {
    "fp32": "exact to the published weights",
    "bf16": "half the bytes and twice the arithmetic where the CPU has it; 8 bits of mantissa",
    "int8": "a quarter of the bytes; scales from calibration, accuracy judged at build",
}


def choose_precisions(models: Sequence[ModelDefinition], inputs: Inputs, timed: Timed) -> Settings:
    """By model; TimingsError where auto is asked for and there is nothing to choose by."""
    if inputs.precision != AUTO:
        named = Setting(value=inputs.precision, reason=REASONS[inputs.precision])
        return {model.name: named for model in models}
    if not timed.raw:
        raise TimingsError(f"PRECISION=auto needs timings {timed.lack}; {CURE}")
    return {model.name: choose_by_timings(timed.raw["models"][model.name]["precisions"]) for model in models}


def choose_by_timings(timed: Mapping[str, Mapping[str, Any]]) -> Setting:
    """The fastest, but a less exact one only where it wins by the margin; FP32 was always timed."""
    speeds = {
        precision: timed[precision]["samples_per_second"]
        for precision in PRECISIONS
        if "samples_per_second" in timed.get(precision, {})
    }
    chosen = PRECISIONS[0]
    for precision, speed in speeds.items():
        if speed >= MARGIN * speeds[chosen]:
            chosen = precision
    return Setting(value=chosen, reason=_explain(chosen, speeds, timed))


def _explain(chosen: str, speeds: Mapping[str, float], timed: Mapping[str, Mapping[str, Any]]) -> str:
    others = sorted((name for name in speeds if name != chosen), key=lambda name: -speeds[name])
    figures = [f"{chosen}: {speeds[chosen]:g} samples/s of a worker"]
    figures += [f"{name} {speeds[name]:g}" for name in others]
    parts = [f"{', '.join(figures)}, timed on this host"]
    if any(speeds[name] > speeds[chosen] for name in others):
        parts.append(f"a less exact precision must be {MARGIN - 1:.0%} faster")
    if timed[chosen].get("gate"):
        parts.append(f"passed the accuracy gate: {timed[chosen]['gate']}")
    parts += [f"not {name}: {entry['problem']}" for name, entry in timed.items() if "problem" in entry]
    return "; ".join(parts)
