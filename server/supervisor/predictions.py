"""How long a request will wait, so that HAProxy rejects one whose deadline would pass: learnt from what was
answered.

A model's rate is only known while its queue is never empty; what is learnt then holds until it is learnt
again. Before that nothing is rejected by a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

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
class Count:
    """One model at one time, of all its instances."""

    at: float
    """Seconds."""
    answered: int
    """So far."""
    queued: int
    """Requests that wait in HAProxy now."""
    service_ms: float
    """From the hand-over to an instance until its answer, on average of the last ones."""


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
    _first: Count | None = None

    def learn(self, count: Count) -> Prediction:
        """What holds from now on."""
        if self._first is None or not count.queued or count.answered < self._first.answered:
            self._first = count if count.queued else None
            return self.prediction
        seconds, answered = count.at - self._first.at, count.answered - self._first.answered
        if seconds >= WINDOW_S and answered >= LEAST_ANSWERED:
            self._first = count
            self.prediction = self._mix(seconds * 1e6 / answered, SERVICE_MARGIN * count.service_ms)
        return self.prediction

    def _mix(self, us: float, service_ms: float) -> Prediction:
        before = self.prediction
        if not before.us_per_request:
            return Prediction(us_per_request=round(us), service_ms=round(service_ms))
        return Prediction(
            us_per_request=round(SHARE * us + (1 - SHARE) * before.us_per_request),
            service_ms=round(SHARE * service_ms + (1 - SHARE) * before.service_ms),
        )
