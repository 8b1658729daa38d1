"""Which tensor shapes a model serves, and how a batch of samples is cut into them.

A new shape costs a compile in the middle of serving (IPEX INT8 BERT: 60-110 ms, measured), so only the
shapes warmed at load are ever run, and rows are never padded: only texts are, to the next warmed length.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

RUN_COST = 10
"""What one more run costs, in tokens: its calls take as long as 10 tokens' arithmetic (BERT-base on one core:
6 ms beside 0.48 ms a token in INT8, 5 beside 0.87 in BF16, 11 beside 1.7 in FP32; measured)."""


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


@dataclass(kw_only=True)
class Padding:
    """What a worker has spent on padding since it loaded."""

    runs: int = 0
    tokens: int = 0
    """Of the texts themselves."""
    padded_tokens: int = 0
    """That went through the model."""

    def count(self, run: Run, needed: Sequence[int]) -> None:
        """Add one run."""
        self.runs += 1
        self.tokens += sum(needed[position] for position in run.samples)
        self.padded_tokens += len(run.samples) * run.length

    def describe(self) -> dict[str, float]:
        """The counts, and the share of the model's tokens that were padding (0 to 1)."""
        waste = 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0
        return {
            "runs": self.runs,
            "tokens": self.tokens,
            "padded_tokens": self.padded_tokens,
            "waste": round(waste, 4),
        }


@dataclass(frozen=True, kw_only=True)
class ShapeGrid:
    """All shapes of one model."""

    batch_sizes: tuple[int, ...]
    """Ascending from 1."""
    lengths: tuple[int, ...] = (0,)
    """Ascending; (0,) where all samples have one size."""
    tokens_per_run: int | None = None
    """Rows × length of a run with more than one row; None is no limit."""

    def allows(self, rows: int, length: int) -> bool:
        """Whether a run of `rows` samples of a warmed `length` is warmed too."""
        within = self.tokens_per_run is None or rows * length <= self.tokens_per_run
        return rows in self.batch_sizes and (rows == 1 or within)

    def list_shapes(self) -> list[Shape]:
        """Every shape to warm, largest first so that the allocator grows once."""
        return [
            Shape(batch_size=rows, length=length)
            for length in reversed(self.lengths)
            for rows in reversed(self.batch_sizes)
            if self.allows(rows, length)
        ]

    def fit_length(self, needed: int) -> int:
        """The smallest length that holds `needed`, which is at most the largest one."""
        return self.lengths[bisect.bisect_left(self.lengths, needed)]


def plan_runs(needed: Sequence[int], grid: ShapeGrid) -> list[Run]:
    """Sort samples by the length they need and cut them where runs and padding together cost the least.

    `needed[i]` is the length of sample i. An exact search: best[n] is the cheapest cut of the n shortest.
    """
    order = sorted(range(len(needed)), key=needed.__getitem__)
    lengths = [grid.fit_length(needed[position]) for position in order]
    best, rows_of_last = [0], [0]
    for end, length in enumerate(lengths, start=1):
        costs = [
            (best[end - rows] + RUN_COST + rows * length, rows)
            for rows in grid.batch_sizes
            if rows <= end and grid.allows(rows, length)
        ]
        cost, rows = min(costs)
        best.append(cost)
        rows_of_last.append(rows)
    return _walk_back(order, lengths, rows_of_last)


def _walk_back(order: Sequence[int], lengths: Sequence[int], rows_of_last: Sequence[int]) -> list[Run]:
    runs, end = [], len(order)
    while end:
        start = end - rows_of_last[end]
        runs.append(Run(samples=tuple(order[start:end]), length=lengths[end - 1]))
        end = start
    return runs


def plan_one_run(needed: Sequence[int]) -> list[Run]:
    """The whole batch at once, padded to its longest: the baseline without warmed shapes."""
    return [Run(samples=tuple(range(len(needed))), length=max(needed))] if needed else []
