"""What computes each model, and in which precision: as asked for, or with auto the fastest one timed here.

Whether a variant (an engine in a precision) answers well enough is decided before, by the accuracy gate when
the archive is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from config.definitions import ModelDefinition
from config.errors import ConfigError, TimingsError
from config.plan import Inputs, Setting, Settings
from config.rules.engines import find_asked, is_given
from config.rules.requests import PRECISIONS, list_auto
from config.timings import CURE, Timed
from config.tuned import NOT_TUNED, Tuned
from handlers.engines import ENGINES, name_variant
from handlers.engines.backend import AUTO, list_engines
from handlers.engines.stacks import DEFAULT_STACK, list_of_stack

MARGIN = 1.05
"""A less exact precision must be this much faster. Medians of some seconds differ by one or two percent from
one time to the next, on shared machines by a few: without a margin two that are equally fast would take
turns from host to host."""

TIE = 1.02
"""Between engines in one precision nothing but speed is at stake, so only what one time differs from the next
by on a quiet machine is left to the order of ENGINES."""

REASONS = {
    "fp32": "exact to the published weights",
    "bf16": "half the bytes and twice the arithmetic where the CPU has it; 8 bits of mantissa",
    "int8": "a quarter of the bytes; scales from calibration, accuracy judged at build",
}


def list_candidates(
    model: ModelDefinition, inputs: Inputs, missing: Collection[str], tuned: Tuned = NOT_TUNED
) -> list[str]:
    """Variants that a model may be served in, if the CPU can: with auto those of the engines that are there,
    or the one that it was tuned in."""
    fixed = tuned.decide("variant", model.name)
    if fixed and list_auto(inputs):
        return [str(fixed.value)]
    asked = find_asked(inputs)[model.name]
    return [
        name_variant(engine, precision)
        for engine in list_engines(asked, missing)
        for precision in PRECISIONS
        if precision in (model.precisions if inputs.precision == AUTO else (inputs.precision,))
        # A person who names an engine is told what it has not.
        and (asked != AUTO or precision in ENGINES[engine].flags)
    ]


def choose_variants(
    models: Sequence[ModelDefinition], inputs: Inputs, missing: Collection[str], timed: Timed, tuned: Tuned
) -> tuple[Settings, Settings]:
    """Engines and precisions by model; TimingsError where auto is asked for and there is nothing to choose
    by."""
    chosen = {model.name: _choose(model.name, inputs, missing, timed, tuned) for model in models}
    return {name: one[0] for name, one in chosen.items()}, {name: one[1] for name, one in chosen.items()}


def _choose(
    model: str, inputs: Inputs, missing: Collection[str], timed: Timed, tuned: Tuned
) -> tuple[Setting, Setting]:
    engine, precision = _find_engine(inputs, model), _find_precision(inputs)
    if engine and precision:
        return engine, precision
    found = tuned.decide("variant", model) or _choose_timed(model, inputs, timed)
    by, within = str(found.value).split()
    absent = sorted({*missing} & {*list_of_stack(inputs.stack)})
    lacking = "".join(f"; {name} is not installed: make setup BACKEND={name}" for name in absent)
    return (
        engine or Setting(value=by, reason=f"{found.reason}{lacking}"),
        precision or replace(found, value=within),
    )


def _find_engine(inputs: Inputs, model: str) -> Setting | None:
    """The one that is named; None with auto."""
    asked = find_asked(inputs)[model]
    if asked == AUTO:
        return None
    default = "default" if inputs.stack == DEFAULT_STACK else f"default of STACK={inputs.stack}"
    way = "asked for" if is_given(inputs, model) else default
    return Setting(value=asked, reason=f"{way}: {ENGINES[asked].reason}")


def _find_precision(inputs: Inputs) -> Setting | None:
    if inputs.precision == AUTO:
        return None
    return Setting(value=inputs.precision, reason=REASONS[inputs.precision])


def _choose_timed(model: str, inputs: Inputs, timed: Timed) -> Setting:
    asked = " ".join(list_auto(inputs))
    if not timed.raw:
        raise TimingsError(f"{asked} needs timings {timed.lack}; {CURE}")
    found = choose_by_timings(timed.find_variants(model))
    if found is None:
        why = "; ".join(_list_problems(timed.find_variants(model)))
        raise ConfigError(f"{asked}: {model} can be served in nothing that is asked for: {why}")
    return found


def choose_by_timings(timed: Mapping[str, Mapping[str, Any]]) -> Setting | None:
    """The fastest, but a less exact one only where it wins by the margin; None where there is none."""
    speeds = {
        variant: timed[variant]["samples_per_second"]
        for variant in _list_all()
        if "samples_per_second" in timed.get(variant, {})
    }
    chosen = ""
    for precision in PRECISIONS:
        best = _choose_engine({v: speed for v, speed in speeds.items() if v.endswith(f" {precision}")})
        if best and speeds[best] >= MARGIN * speeds.get(chosen, 0.0):
            chosen = best
    return Setting(value=chosen, reason=_explain(chosen, speeds, timed)) if chosen else None


def _choose_engine(speeds: Mapping[str, float]) -> str:
    """Of variants in one precision; empty where there is none."""
    fastest = max(speeds.values(), default=0.0)
    return next((variant for variant, speed in speeds.items() if TIE * speed >= fastest), "")


def _list_all() -> list[str]:
    """In the order of ENGINES, the most exact of each first."""
    return [name_variant(engine, precision) for engine in ENGINES for precision in PRECISIONS]


def _explain(chosen: str, speeds: Mapping[str, float], timed: Mapping[str, Mapping[str, Any]]) -> str:
    others = sorted((name for name in speeds if name != chosen), key=lambda name: -speeds[name])
    figures = [f"{chosen}: {speeds[chosen]:g} samples/s of a worker"]
    figures += [f"{name} {speeds[name]:g}" for name in others]
    faster = {name.split()[1] for name in others if speeds[name] > speeds[chosen]}
    own = chosen.split()[1]
    parts = [f"{', '.join(figures)}, timed on this host"]
    if faster - {own}:
        parts.append(f"a less exact precision must be {MARGIN - 1:.0%} faster")
    if own in faster:
        parts.append(f"of engines within {TIE - 1:.0%} the first of {', '.join(ENGINES)}")
    if timed[chosen].get("gate"):
        parts.append(f"passed the accuracy gate: {timed[chosen]['gate']}")
    return "; ".join([*parts, *_list_problems(timed)])


def _list_problems(timed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"not {variant}: {timed[variant]['problem']}"
        for variant in _list_all()
        if "problem" in timed.get(variant, {})
    ]
