"""The rate that the door predicts waits by."""

from __future__ import annotations

from server.haproxy import Stat
from server.supervisor.predictions import WINDOW_S, Prediction, Predictor


def count(at: float, answered: int, queued: int = 10, service_ms: float = 300.0) -> tuple[float, Stat]:
    return at, Stat(answered=answered, queued=queued, in_hand=0, service_ms=service_ms, up=1, asleep={})


def test_nothing_is_predicted_before_a_queue_was_seen() -> None:
    predictor = Predictor()
    for second in range(10):
        assert predictor.learn(*count(second, second * 100, queued=0)) == Prediction()


def test_the_rate_of_a_full_window_is_learnt() -> None:
    predictor = Predictor()
    predictor.learn(*count(0.0, 0))
    assert predictor.learn(*count(WINDOW_S / 2, 100)) == Prediction()
    assert predictor.learn(*count(WINDOW_S, 200)) == Prediction(us_per_request=10_000, service_ms=450)


def test_a_window_in_which_the_queue_was_empty_tells_nothing_of_the_rate() -> None:
    predictor = Predictor()
    predictor.learn(*count(0.0, 0))
    predictor.learn(*count(1.0, 10, queued=0))
    assert predictor.learn(*count(WINDOW_S, 20)) == Prediction()


def test_newer_windows_weigh_more_than_older_ones() -> None:
    predictor = Predictor(prediction=Prediction(us_per_request=10_000, service_ms=100))
    predictor.learn(*count(0.0, 0))
    learnt = predictor.learn(*count(2.0, 100))
    assert learnt == Prediction(us_per_request=15_000, service_ms=275)
    predictor.learn(*count(4.0, 200))
    assert predictor.prediction.us_per_request == 17_500


def test_counters_that_began_anew_are_no_rate() -> None:
    predictor = Predictor()
    predictor.learn(*count(0.0, 1000))
    assert predictor.learn(*count(2.0, 10)) == Prediction()
    assert predictor.learn(*count(4.0, 210)).us_per_request == 10_000
