"""Plans of a race: the default, its neighbours, other backends and precisions; what tuned.json says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    """Backend and precision; empty: the default's."""

    @property
    def name(self) -> str:
        """`w2x1-b4-ipex-int8`: two workers of one core, batch 4; of a mix all batches, in its order."""
        sizes = [f"b{size}" for size in self.batch.values()]
        return "-".join([f"w{self.workers}x{self.cores_per_worker}", *sizes, *self.variant.split()])

    @property
    def layout(self) -> list[str]:
        """Settings."""
        return [f"WORKERS={self.workers}", f"CORES_PER_WORKER={self.cores_per_worker}"]

    @property
    def arguments(self) -> list[str]:
        """Settings, with the layout's."""
        sizes = ",".join(f"{model}={size}" for model, size in self.batch.items())
        return [*variant_arguments(self.variant), *self.layout, f"BATCH={sizes}"]


def variant_arguments(variant: str) -> list[str]:
    """Settings; none for the default's."""
    backend, _, precision = variant.partition(" ")
    return [f"BACKEND={backend}", f"PRECISION={precision}"] if variant else []


def read_candidate(plan: Plan, models: Sequence[str]) -> Candidate:
    """The numbers of a plan."""
    workers, cores = plan.models[models[0]].workers.value, plan.layout.cores_per_worker.value
    batch = {model: int(plan.models[model].batch_size.value) for model in models}
    return Candidate(workers=int(workers), cores_per_worker=int(cores), batch=batch)


def list_neighbours(
    default: Candidate, sizes: Mapping[str, Sequence[int]], *, free_layout: bool
) -> list[Candidate]:
    """Each model's batch a size of half or twice; then half or twice the workers on the same cores."""
    found = []
    for model, size in default.batch.items():
        near = [known for known in sizes[model] if known <= size / 2][-1:]
        near += [known for known in sizes[model] if known >= size * 2][:1]
        found += [replace(default, batch={**default.batch, model: known}) for known in near]
    workers, cores = default.workers, default.cores_per_worker
    if free_layout:
        layouts = [(workers // 2, 2 * cores)] * (workers % 2 == 0)
        layouts += [(2 * workers, cores // 2)] * (cores % 2 == 0)
        found += [replace(default, workers=many, cores_per_worker=few) for many, few in layouts]
    return found


def name_plans(candidates: Sequence[Mapping[str, Any]]) -> dict[str, Candidate]:
    """By name, from plain values; the first one is the default."""
    default, *others = (Candidate(**known) for known in candidates)
    return {DEFAULT: default, **{candidate.name: candidate for candidate in others}}


def choose(default: Candidate, served: Candidate, *, alone: bool) -> dict[str, Any]:
    """What tuned.json says; workers are one number for all models, so they are chosen `alone`."""
    chosen: dict[str, Any] = {}
    if served.variant:
        chosen["variant"] = dict.fromkeys(served.batch, served.variant)
    if sizes := {model: size for model, size in served.batch.items() if size != default.batch[model]}:
        chosen["batch"] = sizes
    if alone and served.layout != default.layout:
        chosen |= {"workers": served.workers, "cores_per_worker": served.cores_per_worker}
    return chosen
