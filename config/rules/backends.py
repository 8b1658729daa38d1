"""What computes each model (BACKEND), and whether it can here; handlers/backends/catalogue.py says what
each offers and needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from config.errors import ConfigError
from config.plan import Inputs
from config.topology import Topology
from handlers.backends import catalogue
from handlers.backends.catalogue import BACKENDS, SETS


def parse_backend(text: str) -> dict[str, str]:
    """Backend by model; ConfigError for what is none."""
    try:
        return catalogue.parse_backend(text)
    except ValueError as problem:
        raise ConfigError(str(problem)) from problem


def find_asked(inputs: Inputs) -> dict[str, str]:
    """By model."""
    chosen = parse_backend(inputs.backend)
    unknown = sorted(set(chosen) - {catalogue.ALL, *inputs.models})
    if unknown:
        raise ConfigError(
            f"BACKEND must name models that are served, {', '.join(inputs.models)}: got {', '.join(unknown)}"
        )
    return {name: catalogue.find_asked(chosen, name, inputs.package_set) for name in inputs.models}


def is_given(inputs: Inputs, model: str) -> bool:
    """Whether somebody named it, or it is the default."""
    return bool({model, catalogue.ALL} & {*parse_backend(inputs.backend)})


def list_named(inputs: Inputs) -> list[str]:
    """Backends that are named; where none is, the default."""
    return list(dict.fromkeys(parse_backend(inputs.backend).values())) or [SETS[inputs.package_set][0]]


def check_backends(topology: Topology, asked: Iterable[str], precision: str) -> None:
    """What each needs of the CPU."""
    for backend in asked:
        if need := find_need(topology, backend, precision):
            cure = "PRECISION=fp32" if precision != "fp32" else "BACKEND=eager"
            raise ConfigError(f"PRECISION={precision} needs {need}; use {cure}")


def check_switches(asked: Mapping[str, str], off: Collection[str]) -> None:
    """ConfigError for a step that shall be left out and that what computes some model has not."""
    having = {step: one.name for one in reversed(BACKENDS.values()) for step in one.switches}
    for model, one in asked.items():
        for switch in sorted({*off} & {*having} - BACKENDS[one].switches):
            raise ConfigError(
                f"--off {switch} needs a backend with that step: got BACKEND={model}={one}; "
                f"leave it out, or use BACKEND={model}={having[switch]}"
            )


def check_installed(asked: Mapping[str, str], missing: Collection[str]) -> None:
    """ConfigError for a backend that is not in the environment."""
    for name, backend in asked.items():
        if backend in missing:
            raise ConfigError(
                f"BACKEND={name}={backend} needs {BACKENDS[backend].distribution}, which is not installed; "
                f"do: make serve BACKEND={backend}, or for an image make image BACKEND={backend}"
            )


def find_need(topology: Topology, backend: str, precision: str) -> str | None:
    """What a backend needs for a precision and is not there."""
    offered = BACKENDS[backend].flags
    if precision not in offered:
        able = [one.name for one in BACKENDS.values() if precision in one.flags]
        return f"BACKEND={' or '.join(able)}: {backend} has no {precision}"
    flags = offered[precision]
    if not flags or set(flags) & set(topology.flags):
        return None
    one_of = "one of " if len(flags) > 1 else ""
    there = ", ".join(topology.flags) or "none of the known ones"
    return f"a CPU with {one_of}{', '.join(flags)}: {topology.model_name} has {there}"
