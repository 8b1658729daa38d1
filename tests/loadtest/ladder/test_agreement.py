"""Answers are compared by label and probability, whatever form a handler gives them."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.ladder.agreement import compare_answers

FP32 = [{"label": "cat", "probability": 0.7}, {"label": "dog", "probability": 0.2}]
NEAR = [{"label": "cat", "probability": 0.45}, {"label": "dog", "probability": 0.44}]


def test_labels_and_the_largest_difference():
    other = [{"label": "dog", "probability": 0.6}, {"label": "cat", "probability": 0.3}]
    found = compare_answers([FP32, other], [FP32, FP32])
    assert (found.same, found.judged, found.near_ties) == (1, 2, 0)
    assert found.largest_difference == pytest.approx(0.4)


def test_near_ties_are_not_judged_by_their_label():
    swapped = [{"label": "dog", "probability": 0.45}, {"label": "cat", "probability": 0.44}]
    found = compare_answers([swapped], [NEAR])
    assert (found.judged, found.near_ties) == (0, 1)
    assert found.largest_difference == pytest.approx(0.01)


def test_stocks_image_classifier_answers_labels_alone():
    found = compare_answers([{"cat": 0.69, "dog": 0.2}], [FP32])
    assert (found.same, found.judged) == (1, 1)
    assert found.largest_difference == pytest.approx(0.01)


def test_a_text_models_answer_is_an_object():
    answer = {"label": "positive", "probabilities": {"negative": 0.1, "positive": 0.9}}
    assert compare_answers([answer], [answer]).largest_difference == 0.0


def test_an_error_is_no_answer():
    with pytest.raises(LoadTestError, match="an answer must have labels with probabilities"):
        compare_answers([{"code": 503, "error": "no worker"}], [FP32])
