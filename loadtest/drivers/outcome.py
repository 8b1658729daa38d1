"""What a driver brings back, whichever it was."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.drivers.records import Records


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the generators saw of one job."""

    records: Records
    """Of all requests, those of warm-up and cool-down too."""
    wall_zero: float
    """When the measured window began, in seconds since the epoch."""
    cpu_shares: tuple[float, ...] = ()
    """Of each generating process: cores used during the window; empty where nothing generates."""
    requests_per_second: float | None = None
    """The driver's own figure, where its raw times are too coarse to make one (ab)."""
    model_share: float | None = None
    """Without a server: the part of the time inside the model (0 to 1)."""
    notes: tuple[str, ...] = ()
    """What the driver itself says."""
