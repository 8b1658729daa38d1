"""What the server asks of a model when it loads, read from the worker's environment.

`TS_IPEX_ENABLE` is set by TorchServe from `ipex_enable`; `CPU_KIT_OPTIONS` by the plan, as JSON
`{"<model>": {"precision": "bf16", "threads": 1, "off": ["freeze"], "limits": {"pixels": 24000000}}}`.
Without either, an archive serves its default precision with plain TorchScript and its handler's own limits,
so any TorchServe can load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handlers.shared.definition import BASELINE, Definition
from handlers.shared.errors import LoadError

OPTIONS_VARIABLE = "CPU_KIT_OPTIONS"
IPEX_VARIABLE = "TS_IPEX_ENABLE"
OPTIONAL_STEPS = ("channels_last", "trace", "freeze")
PACKING = "packing"
"""Not a step: when off, each text has a row of its own, padded to the next warmed length."""
BUCKETS = "buckets"
"""Not a step: when off, a batch is padded to its longest sample and run at once, whatever shape that is."""
SWITCHES = (*OPTIONAL_STEPS, PACKING, BUCKETS)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How this worker shall load the model."""

    precision: str
    ipex: bool
    threads: int | None
    """Intra-op threads; None leaves what OMP_NUM_THREADS gave."""
    off: frozenset[str] = frozenset()
    """What is switched off, of SWITCHES, for a baseline."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """What one request may cost, by name: those that replace the handler's own (Classifier.LIMITS)."""


def read_options(definition: Definition, environment: Mapping[str, str]) -> LoadOptions:
    """Read and check the options for one model; LoadError says which value is wrong and what is allowed."""
    asked = _parse(environment.get(OPTIONS_VARIABLE, "{}")).get(definition.name, {})
    _require(
        set(asked) <= {"precision", "threads", "off", "limits"},
        f"its keys must be precision, threads, off, limits: got {asked}",
    )
    precision = asked.get("precision", definition.default_precision)
    allowed = ", ".join(definition.precisions)
    _require(precision in definition.precisions, f"precision must be one of {allowed}: got {precision}")
    _check_judged(definition, precision)
    threads = asked.get("threads")
    _require(
        threads is None or (isinstance(threads, int) and threads > 0), f"threads must be > 0: got {threads}"
    )
    off = frozenset(asked.get("off", ()))
    _require(off <= set(SWITCHES), f"off must be among {', '.join(SWITCHES)}: got {sorted(off)}")
    ipex = environment.get(IPEX_VARIABLE, "false").lower() == "true"
    limits = _read_limits(asked.get("limits", {}))
    return LoadOptions(precision=precision, ipex=ipex, threads=threads, off=off, limits=limits)


def _check_judged(definition: Definition, precision: str) -> None:
    """LoadError for a precision that the archive does not hold, or that may not be served."""
    instead = f"use PRECISION={definition.default_precision}"
    build = f"make models MODELS={definition.name} PRECISION={precision}"
    if precision in definition.refused:
        raise LoadError(
            f"precision {precision} failed the accuracy gate when the archive was built: "
            f"{definition.refused[precision]}",
            cure=f"{instead}, or other calibration data (CALIBRATION=)",
        )
    if precision in definition.not_built:
        raise LoadError(
            f"precision {precision} is not in the archive: it could not be built where that was made: "
            f"{definition.not_built[precision]}",
            cure=f"build it on this machine: {build}; or {instead}",
        )
    if precision not in (BASELINE, *definition.asked):
        raise LoadError(
            f"precision {precision} is not in the archive: no build was asked for it, so it was never judged",
            cure=f"{build}; or {instead}",
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
            f"{OPTIONS_VARIABLE} is not JSON: {error}", cure="generate the plan again with `make config`"
        ) from error
    _require(isinstance(parsed, dict), f"it must be an object of models: got {type(parsed).__name__}")
    return parsed


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LoadError(f"{OPTIONS_VARIABLE}: {message}", cure="generate the plan again with `make config`")
