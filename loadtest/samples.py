"""Raw samples of a run, one per request, and what follows from them; nothing is rounded or merged here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

OK = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Arrays of one length, in the order in which the answers came."""

    start: np.ndarray
    """Seconds from the run's first request to this one's."""
    latency: np.ndarray
    """Seconds from the request's start until its answer was read."""
    status: np.ndarray
    """HTTP status; 0 where no answer came."""
    size: np.ndarray
    """Bytes of the answer's body."""
    payload: np.ndarray
    """Which payload was sent, by its place in the list."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> np.ndarray:
        """Seconds from the run's first request to this one's answer."""
        return self.start + self.latency

    @property
    def errors(self) -> int:
        """Requests without an answer, or with another status than 200."""
        return int((self.status != OK).sum())

    def answered_within(self, begin: float, end: float) -> Samples:
        """Those whose answers came in [begin, end)."""
        return self._take((self.end >= begin) & (self.end < end))

    def part(self, number: int, of: int) -> Samples:
        """The number-th (from 0) of so many equal parts, in order."""
        cuts = [len(self) * cut // of for cut in (number, number + 1)]
        return self._take(slice(*cuts))

    def _take(self, chosen: np.ndarray | slice) -> Samples:
        return Samples(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def save(self, path: Path) -> None:
        """As a compressed .npz."""
        np.savez_compressed(path, **{field.name: getattr(self, field.name) for field in fields(self)})


def load_samples(path: Path) -> Samples:
    """Samples that were saved."""
    with np.load(path) as arrays:
        return Samples(**{field.name: arrays[field.name] for field in fields(Samples)})


def join_samples(several: Sequence[Samples]) -> Samples:
    """One run after the other; `start` stays that of its own run."""
    return Samples(
        **{f.name: np.concatenate([getattr(one, f.name) for one in several]) for f in fields(Samples)}
    )
