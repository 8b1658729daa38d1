"""Which tensor shapes a model serves, and how a batch of samples is laid out in them.

A new shape costs a compile in the middle of serving (INT8 BERT: 60-110 ms, measured), so only the
shapes warmed at load are ever run. Texts are packed into rows (packing.py) where the model allows it; else
each is padded to the next warmed length.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

RUN_COST = 10
"""What one more run costs, in tokens: its calls take as long as 10 tokens' arithmetic (BERT-base on one core:
6 ms beside 0.48 ms a token in INT8, 5 beside 0.87 in BF16, 11 beside 1.7 in FP32; measured)."""

TRACE_ROWS = 2
"""Rows of the traced example: more than one, so that no dimension is taken for a constant 1."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One warmed shape: `batch_size` rows of `length` (tokens, or 0 where samples have one size)."""

    batch_size: int
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One forward pass: which samples (by position in the batch) stand in each row, and the rows' length."""

    rows: tuple[tuple[int, ...], ...]
    length: int = 0

    @property
    def samples(self) -> tuple[int, ...]:
        """All of them, in the order of the model's answers."""
        return tuple(itertools.chain.from_iterable(self.rows))


@dataclass(kw_only=True)
class PackingEfficiency:
    """How much of what a worker computed since it loaded was asked for."""

    runs: int = 0
    tokens: int = 0
    """Of the texts themselves."""
    computed_tokens: int = 0
    """That went through the model, padding included."""

    def count(self, run: Run, needed: Sequence[int]) -> None:
        """Add one run."""
        self.runs += 1
        self.tokens += sum(needed[position] for position in run.samples)
        self.computed_tokens += len(run.rows) * run.length

    def describe(self) -> dict[str, float]:
        """The counts, and the share of the model's tokens that were texts' own (0 to 1)."""
        share = self.tokens / self.computed_tokens if self.computed_tokens else 1.0
        return {
            "runs": self.runs,
            "tokens": self.tokens,
            "computed_tokens": self.computed_tokens,
            "share": round(share, 4),
        }


class Layout(Protocol):
    """How samples become runs of warmed shapes; `needed[i]` is the length of sample i."""

    def list_shapes(self) -> list[Shape]:
        """Every shape to warm, largest first so that the allocator grows once."""

    @property
    def trace_shape(self) -> Shape:
        """A middling shape: the graph holds for all, and tracing the longest takes seconds."""

    def fit_length(self, needed: int) -> int:
        """The smallest warmed length that holds `needed`."""

    def plan_runs(self, needed: Sequence[int]) -> list[Run]:
        """Each sample in one place, at the least cost."""

    def arrange(self, shape: Shape, needed: Sequence[int]) -> Run:
        """An example of a run of one shape, of samples that fit, again and again."""


@dataclass(frozen=True, kw_only=True)
class ShapeGrid:
    """One sample a row; batch sizes × lengths."""

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
        """Every shape to warm, largest first."""
        return [
            Shape(batch_size=rows, length=length)
            for length in reversed(self.lengths)
            for rows in reversed(self.batch_sizes)
            if self.allows(rows, length)
        ]

    @property
    def trace_shape(self) -> Shape:
        """The middle length."""
        return Shape(batch_size=TRACE_ROWS, length=self.lengths[len(self.lengths) // 2])

    def fit_length(self, needed: int) -> int:
        """The smallest length that holds `needed`, which is at most the largest one."""
        return self.lengths[bisect.bisect_left(self.lengths, needed)]

    def plan_runs(self, needed: Sequence[int]) -> list[Run]:
        """Sort samples by the length they need and cut them where runs and padding together cost the least.

        An exact search: best[n] is the cheapest cut of the n shortest.
        """
        order = sorted(range(len(needed)), key=needed.__getitem__)
        lengths = [self.fit_length(needed[position]) for position in order]
        best, rows_of_last = [0], [0]
        for end, length in enumerate(lengths, start=1):
            costs = [
                (best[end - rows] + RUN_COST + rows * length, rows)
                for rows in self.batch_sizes
                if rows <= end and self.allows(rows, length)
            ]
            cost, rows = min(costs)
            best.append(cost)
            rows_of_last.append(rows)
        return _walk_back(order, lengths, rows_of_last)

    def arrange(self, shape: Shape, needed: Sequence[int]) -> Run:
        """Those that fit, the longest first."""
        fitting = [number for number, length in enumerate(needed) if length <= shape.length][::-1]
        rows = tuple((fitting[row % len(fitting)],) for row in range(shape.batch_size))
        return Run(rows=rows, length=shape.length)


def _walk_back(order: Sequence[int], lengths: Sequence[int], rows_of_last: Sequence[int]) -> list[Run]:
    runs, end = [], len(order)
    while end:
        start = end - rows_of_last[end]
        runs.append(Run(rows=tuple((one,) for one in order[start:end]), length=lengths[end - 1]))
        end = start
    return runs


@dataclass(frozen=True, kw_only=True)
class WholeBatch(ShapeGrid):
    """The baseline without warmed shapes: a batch is one run, padded to its longest sample."""

    def plan_runs(self, needed: Sequence[int]) -> list[Run]:
        """One, whatever shape that is."""
        rows = tuple((number,) for number in range(len(needed)))
        return [Run(rows=rows, length=max(needed))] if needed else []
