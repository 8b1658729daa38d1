"""What shall be done about an instance, by what was seen of it: pure, and the times it goes by.

TorchServe starts a worker that died again by itself, in 15 to 30 s; what it does not see (a worker or itself
stopped, a lost launcher, a hang) is ended here, so that it does. A whole instance is only ended where another
one serves meanwhile, or where nothing else has helped: its requests are then asked again by the door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.health import READY
from server.supervisor.sight import RUNS, Sight

LATEST_LOOK_S = 30.0
"""A keeper looks every 5 s and waits 5 s for each model."""
PATIENCE_BESIDE_S = 15.0
"""Wrong answers or none, while another instance serves: two looks and more."""
PATIENCE_ALONE_S = 60.0
"""The same where nobody else serves; TorchServe's own restart of a worker takes 15-30 s."""
PATIENCE_PARTLY_S = 150.0
"""Fewer workers than planned: TorchServe's pauses between restarts grow to a minute and more."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do."""

    replace: str = ""
    """Why the whole instance is to be ended and started again; empty when it is not."""
    end_workers: Mapping[int, str] = field(default_factory=dict)
    """Workers to end, and why; TorchServe starts others."""


@dataclass(kw_only=True)
class Judge:
    """Remembers since when an instance is not well."""

    memory_mib: int
    """What all its processes may hold together."""
    _unwell_since: float | None = None
    _lost_since: float | None = None
    _looked_at: float | None = None
    _stamp: int = 0

    def judge(self, seen: Sight, now: float, *, others: bool) -> Verdict:
        """`others`: another instance serves all its models; `now`: seconds of a clock that never jumps."""
        if seen.stamp != self._stamp or self._looked_at is None:
            self._stamp, self._looked_at = seen.stamp, now
        unlooked_s = now - self._looked_at
        lost = sorted(model for model, count in seen.serving.items() if not count and seen.planned[model])
        self._lost_since = (self._lost_since or now) if lost else None
        self._unwell_since = None if seen.well else (self._unwell_since or now)
        if seen.java != RUNS:
            return Verdict(replace=f"TorchServe {seen.java}")
        if unlooked_s > LATEST_LOOK_S:
            return Verdict(replace=f"nobody has looked at it for {unlooked_s:.0f} s")
        if lost and (others or now - (self._lost_since or now) > PATIENCE_ALONE_S):
            return Verdict(replace=f"{', '.join(lost)}: no worker is left")
        unwell_s = 0.0 if self._unwell_since is None else now - self._unwell_since
        if unwell_s > self._find_patience(seen, others):
            return Verdict(replace=f"{seen.health or 'not ready'}, for {unwell_s:.0f} s")
        return Verdict(end_workers={**self._find_leak(seen), **seen.ill})

    def forget(self) -> None:
        """It was started again, or nobody could look for a while."""
        self._unwell_since = self._lost_since = self._looked_at = None

    def _find_patience(self, seen: Sight, others: bool) -> float:
        """A lack of workers cures itself; a wrong answer, or none, hardly."""
        problems = seen.health.removeprefix("not ready: ").split("; ")  # server/health.py
        if seen.health == READY or all(problem.endswith("workers ready") for problem in problems):
            return PATIENCE_PARTLY_S
        return PATIENCE_BESIDE_S if others else PATIENCE_ALONE_S

    def _find_leak(self, seen: Sight) -> dict[int, str]:
        """The largest process, where all together hold more than is planned for."""
        total = sum(seen.anonymous_mib.values())
        if total <= self.memory_mib or not seen.anonymous_mib:
            return {}
        largest = max(seen.anonymous_mib, key=lambda pid: seen.anonymous_mib[pid])
        return {
            largest: f"holds {seen.anonymous_mib[largest]} MiB of {total}, and {self.memory_mib} are planned"
        }
