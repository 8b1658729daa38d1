"""What computes each model (BACKEND), and whether it can here; each engine says in its own file
(handlers/engines/) what it offers and needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from config.errors import ConfigError
from config.plan import Inputs, Setting, Settings
from config.topology import Topology
from handlers.engines import DEFAULT, ENGINES, backend


def parse_backend(text: str) -> dict[str, str]:
    """Engine by model; ConfigError for what is none."""
    try:
        return backend.parse_backend(text)
    except ValueError as problem:
        raise ConfigError(str(problem)) from problem


def choose_engines(inputs: Inputs, models: Sequence[str]) -> Settings:
    """By model."""
    chosen = parse_backend(inputs.backend)
    unknown = sorted(set(chosen) - {backend.ALL, *models})
    if unknown:
        raise ConfigError(
            f"BACKEND must name models that are served, {', '.join(models)}: got {', '.join(unknown)}"
        )
    way = "asked for" if chosen else "default"
    engines = {name: ENGINES[backend.find_engine(chosen, name)] for name in models}
    return {
        name: Setting(value=engine.name, reason=f"{way}: {engine.reason}") for name, engine in engines.items()
    }


def list_named(inputs: Inputs) -> list[str]:
    """Engines that are named; where none is, the default."""
    return list(dict.fromkeys(parse_backend(inputs.backend).values())) or [DEFAULT]


def check_engines(topology: Topology, names: Iterable[str], precision: str) -> None:
    """What each needs of the CPU."""
    for engine in names:
        need = find_need(topology, engine, precision)
        if need:
            cure = "PRECISION=fp32" if precision != "fp32" else "BACKEND=eager"
            raise ConfigError(f"PRECISION={precision} needs {need}; use {cure}")


def check_switches(engines: Settings, off: Collection[str]) -> None:
    """ConfigError for a step that shall be left out and that some model's engine has not."""
    having = {step.name: engine.name for engine in reversed(ENGINES.values()) for step in engine.steps}
    for model, setting in engines.items():
        steps = {step.name for step in ENGINES[setting.value].steps}
        for switch in sorted({*off} & {*having} - steps):
            raise ConfigError(
                f"--off {switch} needs an engine with that step: got BACKEND={model}={setting.value}; "
                f"leave it out, or use BACKEND={model}={having[switch]}"
            )


def check_installed(engines: Settings, missing: Collection[str]) -> None:
    """ConfigError for an engine that is not in the environment."""
    for name, setting in engines.items():
        engine = ENGINES[setting.value]
        if engine.name in missing:
            raise ConfigError(
                f"BACKEND={name}={engine.name} needs {engine.distribution}, which is not installed; "
                f"do: make serve BACKEND={engine.name}, or for an image make image BACKEND={engine.name}"
            )


def find_need(topology: Topology, engine: str, precision: str) -> str | None:
    """What an engine needs for a precision and is not there."""
    offered = ENGINES[engine].flags
    if precision not in offered:
        able = [one.name for one in ENGINES.values() if precision in one.flags]
        return f"BACKEND={' or '.join(able)}: {engine} has no {precision}"
    flags = offered[precision]
    if not flags or set(flags) & set(topology.flags):
        return None
    one_of = "one of " if len(flags) > 1 else ""
    there = ", ".join(topology.flags) or "none of the known ones"
    return f"a CPU with {one_of}{', '.join(flags)}: {topology.model_name} has {there}"
