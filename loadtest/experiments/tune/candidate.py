"""A plan that may be measured: the default with a step of its batch or layout, or in another precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from config.plan import Plan

DEFAULT = "default"
"""The plan that `make serve` makes when nothing was tuned."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What is chosen; everything else of the plan is the default's."""

    workers: int
    """Of each model."""
    cores_per_worker: int
    batch: Mapping[str, int]
    """By model."""
    variant: str = ""
    """Engine and precision; empty: the default's."""

    @property
    def name(self) -> str:
        """`w2x1-b4`: two workers of one core, batch 4; of a mix the batch of each model, in its order. Then
        engine and precision where they are not the default's."""
        sizes = [f"b{size}" for size in self.batch.values()]
        return "-".join([f"w{self.workers}x{self.cores_per_worker}", *sizes, *self.variant.split()])

    @property
    def arguments(self) -> list[str]:
        """Of `python -m config`."""
        return [
            *variant_arguments(self.variant),
            *("--workers", str(self.workers), "--cores-per-worker", str(self.cores_per_worker)),
            *("--batch", ",".join(f"{name}={size}" for name, size in self.batch.items())),
        ]


def variant_arguments(variant: str) -> list[str]:
    """Of `python -m config`; none for the default's."""
    return [
        part for pair in zip(("--backend", "--precision"), variant.split(), strict=False) for part in pair
    ]


def read_candidate(plan: Plan, models: Sequence[str]) -> Candidate:
    """The numbers of a plan."""
    return Candidate(
        workers=int(plan.models[models[0]].workers.value),
        cores_per_worker=int(plan.layout.cores_per_worker.value),
        batch={name: int(plan.models[name].batch_size.value) for name in models},
    )


def list_candidates(
    default: Candidate, sizes: Mapping[str, Sequence[int]], *, free_layout: bool
) -> list[Candidate]:
    """The default's neighbours: each model's batch one size down or up, then half or twice the workers on
    the same cores."""
    found = []
    for model, size in default.batch.items():
        smaller = [one for one in sizes[model] if one <= size / 2][-1:]
        larger = [one for one in sizes[model] if one >= size * 2][:1]
        found += [replace(default, batch={**default.batch, model: one}) for one in (*smaller, *larger)]
    workers, cores = default.workers, default.cores_per_worker
    if free_layout and workers % 2 == 0:
        found.append(replace(default, workers=workers // 2, cores_per_worker=2 * cores))
    if free_layout and cores % 2 == 0:
        found.append(replace(default, workers=2 * workers, cores_per_worker=cores // 2))
    return found
