"""What computes each model, and in which precision: as asked for, else as tuned here, else the default.

Whether a variant (a backend in a precision) answers well enough is decided before, by the accuracy gate when
the archive is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from config.definitions import ModelDefinition
from config.knobs.table import find
from config.plan import Inputs, Libraries, Setting, Settings
from config.rules.backends import find_asked, is_given
from config.timings import Timed
from config.tuned import Tuned
from handlers.backends.catalogue import BACKENDS, name_variant

REASONS = {
    "fp32": "exact to the published weights",
    "bf16": "half the bytes and twice the arithmetic where the CPU has it; 8 bits of mantissa",
    "int8": "a quarter of the bytes; scales from calibration, accuracy judged at build",
}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What is the same for all instances on a machine."""

    libraries: Libraries
    """Allocator and OpenMP."""
    backends: Settings
    """By model."""
    precisions: Settings
    """By model."""
    timed: Timed
    """What batches take here."""
    tuned: Tuned
    """What was found best on this machine and is not asked otherwise."""

    @property
    def variants(self) -> dict[str, str]:
        """Backend and precision by model (catalogue.name_variant)."""
        return {
            model: name_variant(self.backends[model].value, one.value)
            for model, one in self.precisions.items()
        }


def choose_variants(
    models: Sequence[ModelDefinition], inputs: Inputs, tuned: Tuned
) -> tuple[Settings, Settings]:
    """Backends and precisions by model."""
    chosen = {model.name: _choose(model.name, inputs, tuned) for model in models}
    return {name: one[0] for name, one in chosen.items()}, {name: one[1] for name, one in chosen.items()}


def _choose(model: str, inputs: Inputs, tuned: Tuned) -> tuple[Setting, Setting]:
    if found := tuned.decide("variant", model):
        backend, precision = str(found.value).split()
        return replace(found, value=backend), replace(found, value=precision)
    backend, precision = find_asked(inputs)[model], inputs.precision or find("PRECISION").default
    way = "asked for" if is_given(inputs, model) else "default"
    return (
        Setting(value=backend, reason=f"{way}: {BACKENDS[backend].reason}"),
        Setting(value=precision, reason=REASONS[precision]),
    )
