"""Which tensor shapes a model serves, and how a batch of requests is cut into them.

A new shape costs a compile in the middle of serving, so only the shapes warmed at load are ever run:
a batch is cut into runs of the warmed batch sizes (13 = 8 + 4 + 1) rather than padded up to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One warmed shape: `batch_size` samples of `length` (tokens, or 0 where samples have one size)."""

    batch_size: int
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One forward pass: the samples (by position in the batch) and the length they are padded to."""

    samples: tuple[int, ...]
    length: int


def all_shapes(batch_sizes: Sequence[int], lengths: Sequence[int] = (0,)) -> list[Shape]:
    """Every shape to warm, largest first so that the allocator grows once."""
    return [
        Shape(batch_size=size, length=length)
        for length in sorted(lengths, reverse=True)
        for size in sorted(batch_sizes, reverse=True)
    ]


def split_batch(count: int, batch_sizes: Sequence[int]) -> list[int]:
    """Cut `count` samples into warmed batch sizes, largest first; `batch_sizes` must hold 1."""
    sizes: list[int] = []
    for size in sorted(batch_sizes, reverse=True):
        sizes += [size] * (count // size)
        count %= size
    return sizes


def plan_runs(
    sample_lengths: Sequence[int], *, batch_sizes: Sequence[int], lengths: Sequence[int] = (0,)
) -> list[Run]:
    """Group samples by the smallest length that holds them, then cut each group into warmed batch sizes."""
    groups: dict[int, list[int]] = {}
    for position, needed in enumerate(sample_lengths):
        length = min(length for length in lengths if length >= needed)
        groups.setdefault(length, []).append(position)
    runs = []
    for length, members in sorted(groups.items()):
        start = 0
        for size in split_batch(len(members), batch_sizes):
            runs.append(Run(samples=tuple(members[start : start + size]), length=length))
            start += size
    return runs
