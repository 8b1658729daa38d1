"""What computes each model (BACKEND, PRECISION), and whether it can here; handlers/backends/catalogue.py says
what each offers and needs."""

from __future__ import annotations

from config.archives import ModelDefinition
from config.errors import ConfigError
from config.planning.facts import Facts
from config.topology import Topology
from config.tuned import Tuned
from handlers.backends.catalogue import BACKENDS, name_variant

EAGER = ("trace", "freeze")
"""Steps to a graph that are left out for a handler with freeze = False."""
PRECISIONS = {
    "fp32": "exact to the published weights",
    "bf16": "half the bytes and twice the arithmetic where the CPU has it; 8 bits of mantissa",
    "int8": "a quarter of the bytes; scales from calibration, accuracy validated at build",
}
"""The most exact first, which is the default, with its reason."""
DEFAULT_PRECISION = next(iter(PRECISIONS))


def choose_variants(facts: Facts, tuned: Tuned) -> tuple[dict[str, str], dict[str, str]]:
    """By kit model backend and precision (catalogue.name_variant): as given, else as tuned here, else the
    default; with the reasons, by path within an instance.

    ConfigError for what the CPU lacks, what an archive does not hold, and on a live machine for what is not
    installed. Whether a variant answers well enough was decided by the accuracy gate when the archive was
    built.
    """
    settings, variants, why = facts.settings, dict[str, str](), dict[str, str]()
    precision = settings.precision or DEFAULT_PRECISION
    for model in facts.kit:
        name, backend = model.name, facts.find_backend(model.name)
        check_cpu(facts.machine, backend, precision)
        if facts.live and backend in facts.installed.missing_backends:
            raise ConfigError(
                f"BACKEND={name}={backend} needs {BACKENDS[backend].distribution}, which is not installed; "
                f"do: make serve BACKEND={backend}, or for an image make image BACKEND={backend}"
            )
        if found := tuned.find("variant", name):
            variants[name] = str(found)
            why[f"{name}.backend"] = why[f"{name}.precision"] = tuned.explain(name)
        else:
            variants[name] = name_variant(backend, precision)
            given = settings.of_model("backend", name)
            why[f"{name}.backend"] = (
                f"{'BACKEND was given' if given else 'default'}: {BACKENDS[backend].reason}"
            )
            why[f"{name}.precision"] = PRECISIONS[precision]
        _check_variant(facts, model, variants[name])
    return variants, why


def _check_variant(facts: Facts, model: ModelDefinition, variant: str) -> None:
    """ConfigError for what an archive does not hold, and for a step that its backend has not."""
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
