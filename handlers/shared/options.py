"""What the server asks of a model when it loads, read from the worker's environment.

`CPU_KIT_OPTIONS` is set by the plan, as JSON `{"<model>": {"backend": "eager", "precision": "bf16",
"threads": 1, "batch": 4, "off": ["freeze"], "limits": {"pixels": 24000000}}}`. Where no plan does, a switch
of TorchServe's own configuration chooses the backend (Backend.switch). Without either, an archive serves its
default precision by PyTorch alone and with its handler's own limits, so any TorchServe can load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handlers.backends.catalogue import (
    BACKENDS,
    BASELINE,
    OTHER_SUMS,
    Backend,
    name_variant,
    needs_wide_sums,
)
from handlers.definition import Definition
from handlers.shared.errors import LoadError

OPTIONS_VARIABLE = "CPU_KIT_OPTIONS"
OPTIONAL_STEPS = ("channels_last", "trace", "freeze")
EAGER = "eager"
PACKING = "packing"
"""Not a step: when off, each text has a row of its own, padded to the next warmed length."""
BUCKETS = "buckets"
"""Not a step: when off, a batch is padded to its longest sample and run at once, whatever shape that is."""
SWITCHES = (*OPTIONAL_STEPS, PACKING, BUCKETS)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How this worker loads the model."""

    precision: str
    backend: str
    """Of handlers.backends.catalogue.BACKENDS."""
    threads: int | None
    """Intra-op threads; None leaves what OMP_NUM_THREADS gave."""
    off: frozenset[str] = frozenset()
    """What is switched off, of SWITCHES, for a baseline."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """What one request may cost, by name: those that replace the handler's own (Task.LIMITS)."""
    batch: int | None = None
    """Requests in a batch at most: no shape is warmed that they cannot fill; None warms all there are."""


def read_options(definition: Definition, environment: Mapping[str, str]) -> LoadOptions:
    """Read and check the options for one model; LoadError says which value is wrong and what is allowed."""
    asked = _parse(environment.get(OPTIONS_VARIABLE, "{}")).get(definition.name, {})
    _require(
        set(asked) <= {"backend", "precision", "threads", "off", "limits", "batch"},
        f"its keys must be backend, precision, threads, off, limits, batch: got {asked}",
    )
    precision = asked.get("precision", BASELINE)
    allowed = ", ".join(definition.precisions)
    _require(precision in definition.precisions, f"precision must be one of {allowed}: got {precision}")
    backend = asked.get("backend", _find_switched(environment))
    _require(backend in BACKENDS, f"backend must be one of {', '.join(BACKENDS)}: got {backend}")
    off = frozenset(asked.get("off", ()))
    _require(off <= set(SWITCHES), f"off must be among {', '.join(SWITCHES)}: got {sorted(off)}")
    lacking = off & set(OPTIONAL_STEPS) - BACKENDS[backend].switches
    _require(not lacking, f"off must be among the steps of {backend}: got {sorted(lacking)}")
    _check_validated(definition, BACKENDS[backend], precision)
    numbers = {name: asked.get(name) for name in ("threads", "batch")}
    for name, number in numbers.items():
        _require(
            number is None or (isinstance(number, int) and number > 0), f"{name} must be > 0: got {number}"
        )
    limits = _read_limits(asked.get("limits", {}))
    return LoadOptions(precision=precision, backend=backend, off=off, limits=limits, **numbers)


def _find_switched(environment: Mapping[str, str]) -> str:
    """The backend of any TorchServe's own configuration."""
    for backend in BACKENDS.values():
        if environment.get(backend.switch_variable, "").lower() == "true":
            return backend.name
    return EAGER


def _check_validated(definition: Definition, backend: Backend, precision: str) -> None:
    """LoadError for what the archive does not hold, or what may not be served."""
    instead = f"use PRECISION={BASELINE}"
    if precision not in backend.flags:
        raise LoadError(f"{backend.name} has no {precision}: it has {', '.join(backend.flags)}", fix=instead)
    variant = name_variant(backend.name, precision)
    build = f"make models MODELS={definition.name} BACKEND={backend.name} PRECISION={precision}"
    known = definition.variants.get(variant)
    if known and known.rejected:
        raise LoadError(
            f"{variant} failed the accuracy gate when the archive was built: {known.rejected}",
            fix=f"{instead}, or other calibration data (CALIBRATION=)",
        )
    if known and known.not_built:
        raise LoadError(
            f"{variant} is not in the archive: it could not be built where that was made: {known.not_built}",
            fix=f"build it on this machine: {build}; or {instead}",
        )
    if needs_wide_sums(definition.find_accuracy(variant) or {}):
        raise LoadError(
            f"{variant} {OTHER_SUMS}",
            fix=f"build it on this machine: {build}; or {instead}",
        )
    if backend.must_be_validated(precision) and known is None:
        raise LoadError(
            f"{variant} is not in the archive: no build was asked for it, so it was never validated",
            fix=f"{build}; or {instead}",
        )


def _read_limits(limits: Any) -> dict[str, int]:
    whole = isinstance(limits, dict) and all(type(value) is int and value > 0 for value in limits.values())
    _require(whole, f"limits must be whole numbers above 0 by name: got {limits}")
    return dict(limits)


def _parse(text: str) -> dict[str, dict]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise LoadError(
            f"{OPTIONS_VARIABLE} is not JSON: {error}", fix="generate the plan again with `make plan`"
        ) from error
    _require(isinstance(parsed, dict), f"it must be an object of models: got {type(parsed).__name__}")
    return parsed


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LoadError(f"{OPTIONS_VARIABLE}: {message}", fix="generate the plan again with `make plan`")
