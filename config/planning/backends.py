"""What computes each model (BACKEND, PRECISION), and whether it can here; handlers/backends/catalogue.py says
what each offers and needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ConfigError
from config.settings import ALL, Settings
from config.topology import Topology
from config.tuned import Tuned
from handlers.backends.catalogue import BACKENDS, SETS, name_variant, read_set

if TYPE_CHECKING:
    from config.planning.facts import Facts

EAGER = ("trace", "freeze")
"""Steps to a graph that are left out for a handler with freeze = False."""
PRECISIONS = {
    "fp32": "exact to the published weights",
    "bf16": "half the bytes and twice the arithmetic where the CPU has it; 8 bits of mantissa",
    "int8": "a quarter of the bytes; scales from calibration, accuracy validated at build",
}
"""The most exact first, which is the default, with its reason."""
DEFAULT_PRECISION = next(iter(PRECISIONS))


def choose_package_set(settings: Settings, prefix: Path) -> str:
    """That of the environment; where none was set up, the one that has all named backends."""
    return read_set(prefix) or settings.package_set


def find_backend(facts: Facts, model: str) -> str:
    """What is named for a model, else the first of the package set."""
    return str(facts.settings.of_model("backend", model) or SETS[facts.package_set][0])


def check_backends(facts: Facts) -> None:
    """ConfigError for settings by model that name none that is served, for what the CPU lacks, and on a live
    machine for what is not installed."""
    settings, kit = facts.settings, [one.name for one in facts.kit]
    for setting in ("backend", "batch", "delay_ms"):
        if unknown := sorted({*getattr(settings, setting)} - {ALL, *facts.archives}):
            raise ConfigError(
                f"{setting.upper()} must name models that are served, {', '.join(sorted(facts.archives))}: "
                f"got {', '.join(unknown)}"
            )
    for model, backend in settings.backend.items():
        if model in facts.foreign and backend not in ("ipex", "eager"):
            raise ConfigError(
                f"BACKEND of {model} must be ipex or eager, because its archive has a handler of its own: "
                f"got {backend}"
            )
    if settings.precision and not kit:
        raise ConfigError(
            "PRECISION is of the kit's models, and archives that others made have their own: got "
            f"{settings.precision}"
        )
    precision = settings.precision or DEFAULT_PRECISION
    for model in kit:
        backend = find_backend(facts, model)
        check_cpu(facts.machine, backend, precision)
        if facts.live and backend in facts.installed.missing_backends:
            raise ConfigError(
                f"BACKEND={model}={backend} needs {BACKENDS[backend].distribution}, which is not installed; "
                f"do: make serve BACKEND={backend}, or for an image make image BACKEND={backend}"
            )


def choose_variants(facts: Facts, tuned: Tuned) -> tuple[dict[str, str], dict[str, str]]:
    """With the reasons, by path within an instance: backend and precision (catalogue.name_variant) by kit
    model: as asked for, else as tuned here, else the default. Whether a variant answers well enough was
    decided by the accuracy gate when the archive was built."""
    variants, why = {}, {}
    for model in (one.name for one in facts.kit):
        if found := tuned.find("variant", model):
            variants[model] = str(found)
            why[f"{model}.backend"] = why[f"{model}.precision"] = tuned.explain(model)
            continue
        backend, precision = find_backend(facts, model), facts.settings.precision or DEFAULT_PRECISION
        variants[model] = name_variant(backend, precision)
        way = "BACKEND was given" if facts.settings.of_model("backend", model) else "default"
        why[f"{model}.backend"] = f"{way}: {BACKENDS[backend].reason}"
        why[f"{model}.precision"] = PRECISIONS[precision]
    return variants, why


def find_need(topology: Topology, backend: str, precision: str) -> str | None:
    """What a backend needs for a precision and is not there."""
    offered = BACKENDS[backend].flags
    if precision not in offered:
        able = [one.name for one in BACKENDS.values() if precision in one.flags]
        return f"BACKEND={' or '.join(able)}: {backend} has no {precision}"
    flags = offered[precision]
    if not flags or set(flags) & set(topology.flags):
        return None
    there = ", ".join(topology.flags) or "none of the known ones"
    return f"a CPU with {'one of ' * (len(flags) > 1)}{', '.join(flags)}: {topology.model_name} has {there}"


def check_cpu(topology: Topology, backend: str, precision: str) -> None:
    """ConfigError for what a backend needs for a precision and is not there."""
    if need := find_need(topology, backend, precision):
        do = "PRECISION=fp32" if precision != "fp32" else "BACKEND=eager"
        raise ConfigError(f"PRECISION={precision} needs {need}; use {do}")


def check_variants(facts: Facts, variants: Mapping[str, str]) -> None:
    """ConfigError for what an archive does not hold, and for a step that its backend has not."""
    for model in facts.kit:
        variant = variants[model.name]
        backend, precision = variant.split()
        having = {step: one.name for one in reversed(BACKENDS.values()) for step in one.switches}
        for step in sorted({*facts.settings.off} & {*having} - BACKENDS[backend].switches):
            raise ConfigError(
                f"--off {step} needs a backend with that step: got BACKEND={model.name}={backend}; leave it "
                f"out, or use BACKEND={model.name}={having[step]}"
            )
        if precision not in model.precisions:
            raise ConfigError(
                f"PRECISION of {model.name} must be one of {', '.join(model.precisions)}: got {precision}"
            )
        able = [one.name for one in BACKENDS.values() if {*EAGER} <= one.switches]
        if not model.freeze and backend not in able:
            raise ConfigError(
                f"BACKEND of {model.name} must be one of {', '.join(able)}, because its handler has freeze = "
                f"False: got {backend}, which needs a graph of the model"
            )
        if variant not in model.memory:
            why = model.lost.get(variant, "no build was asked for it")
            raise ConfigError(
                f"{variant} is not in the archive of {model.name}: {why}; got {', '.join(model.memory)}; "
                f"do: make models MODELS={model.name} BACKEND={backend} PRECISION={precision}"
            )
