"""How long a request will wait, so that HAProxy rejects one whose deadline would pass: learnt from what was
answered.

A model's rate is only known while its queue is never empty; what is learnt then holds until it is learnt
again. Before that nothing is rejected by a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.haproxy import Stat

WINDOW_S = 2.0
"""Long beside a batch, short beside a minute of overload."""
LEAST_ANSWERED = 8
"""In a window; fewer tell nothing of a rate."""
SHARE = 0.5
"""Of the newest window in the prediction."""
SERVICE_MARGIN = 1.5
"""HAProxy knows the mean, and half of all take longer. At 1.5 × the capacity with deadlines of a second 2,706
of 10,051 that were let in by the mean were computed and exceeded theirs (seen)."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The two figures HAProxy goes by."""

    us_per_request: int = 0
    """1 / rate; 0 while it is not known."""
    service_ms: int = 0
    """Time in an instance, with a margin."""


@dataclass(kw_only=True)
class Predictor:
    """Of one model."""

    prediction: Prediction = Prediction()
    _first: tuple[float, int] | None = None
    """When the window began, and what was answered by then."""

    def learn(self, at: float, stat: Stat) -> Prediction:
        """What holds from now on."""
        if self._first is None or not stat.queued or stat.answered < self._first[1]:
            self._first = (at, stat.answered) if stat.queued else None
            return self.prediction
        seconds, answered = at - self._first[0], stat.answered - self._first[1]
        if seconds >= WINDOW_S and answered >= LEAST_ANSWERED:
            us, ms, before = seconds * 1e6 / answered, SERVICE_MARGIN * stat.service_ms, self.prediction
            if before.us_per_request:
                us = SHARE * us + (1 - SHARE) * before.us_per_request
                ms = SHARE * ms + (1 - SHARE) * before.service_ms
            self.prediction = Prediction(us_per_request=round(us), service_ms=round(ms))
            self._first = at, stat.answered
        return self.prediction
