"""What decides whether a precision is served, and that a build says no more than was shown."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from models.data import Dataset
from models.definition import Thresholds
from models.errors import BuildError
from models.gate.figures import UNDECIDED_MARGIN, Figures, check_labels, compare
from models.gate.verdict import judge, labels_decide

CLASSES = ["cat", "dog"]
GOOD = Figures(
    samples=100, source="synthetic", calibration=None, agreement=0.99, largest_probability_difference=0.02,
    least_cosine=0.999, decided=100, agreement_decided=0.99,
)  # fmt: skip


def label(*, lost: int, gained: int, right: int, samples: int = 300) -> Figures:
    """Figures of a model that in FP32 answers `right` of the inputs right; some are lost, some gained."""
    sure = np.array([[5.0, 0.0]] * right + [[0.0, 5.0]] * (samples - right), dtype=np.float32)
    got = sure.copy()
    got[:lost] = [0.0, 5.0]
    got[right : right + gained] = [5.0, 0.0]
    held_out = Dataset(source="mine.tsv", bodies=(b"",) * samples, labels=("cat",) * samples)
    # One and the same answer would be right on all: the guess is put down, as other classes would do it.
    figures = compare(
        got, sure, held_out=held_out, labels=CLASSES, activation="softmax", thresholds=Thresholds()
    )
    return dataclasses.replace(figures, labelled_guess=0.25)


def test_the_case_that_was_rejected_is_served():
    # Seen: 300 labelled texts, 90.67 → 90.33 %, 98.67 % agreement.
    figures = label(lost=2, gained=1, right=272)
    assert (figures.agreement, figures.labelled_loss_points) == (0.99, 0.33333)
    agreeing = dataclasses.replace(figures, agreement=0.9867, agreement_decided=0.9867)
    assert judge(agreeing, Thresholds()) is None
    assert (figures.labelled_loss_shown, figures.labelled_inputs_needed) == (False, 1100)
    many = label(lost=2, gained=2, right=2700, samples=3000)
    assert (many.labelled_loss_shown, many.labelled_inputs_needed) == (True, None)


@pytest.mark.parametrize(
    ("lost", "gained", "served"), [(0, 0, True), (3, 0, True), (4, 0, False), (13, 10, True), (14, 10, False)]
)
def test_with_labels_the_loss_alone_decides(lost, gained, served):
    figures = dataclasses.replace(label(lost=lost, gained=gained, right=270), agreement_decided=0.5)
    assert (judge(figures, Thresholds()) is None) == served


def test_labels_that_fp32_only_guesses_decide_nothing():
    figures = dataclasses.replace(label(lost=30, gained=30, right=150), labelled_guess=0.5)
    assert not labels_decide(figures)
    assert judge(figures, Thresholds()) is not None
    assert judge(dataclasses.replace(figures, agreement_decided=1.0), Thresholds()) is None


def test_labels_must_be_the_models():
    held_out = Dataset(source="photos", bodies=(b"",) * 2, labels=("cat", "holiday"))
    with pytest.raises(BuildError, match="'holiday'"):
        check_labels(held_out, CLASSES, "softmax")
    right = dataclasses.replace(held_out, labels=("cat", "dog"))
    check_labels(right, CLASSES, "softmax")
    check_labels(dataclasses.replace(held_out, labels=None), CLASSES, "softmax")
    with pytest.raises(BuildError, match="without labels"):
        check_labels(right, CLASSES, "sigmoid")


def compare_outputs(got, expected, activation):
    held_out = Dataset(source="mine", bodies=(b"",) * len(expected))
    labels = [str(number) for number in range(expected.shape[1])]
    return compare(
        got, expected, held_out=held_out, labels=labels, activation=activation, thresholds=Thresholds()
    )


@pytest.mark.parametrize("activation", ["sigmoid", "none"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_that_are_read_alone_pass_as_they_are_and_fail_as_a_constant(activation, outputs):
    """A constant is what centring, a softmax over one output and rare labels took for right."""
    expected = np.random.RandomState(0).normal(-6, 1, (40, outputs)).astype(np.float32)
    assert judge(compare_outputs(expected.copy(), expected, activation), Thresholds()) is None
    constant = np.broadcast_to(expected.mean(axis=0), expected.shape).astype(np.float32)
    figures = compare_outputs(constant, expected, activation)
    assert figures.explained == pytest.approx(0, abs=1e-4)
    assert "R²" in judge(figures, Thresholds())


def test_the_worst_value_decides_whatever_its_unit():
    chance = np.random.RandomState(0)
    expected = np.stack([chance.normal(0, 1000, 50), chance.normal(0, 1, 50)], axis=1).astype(np.float32)
    got = expected.copy()
    got[:, 1] += chance.normal(0, 0.5, 50)  # a quarter of that output's variance, nothing of both together
    assert judge(compare_outputs(got, expected, "none"), Thresholds()) is not None


def test_labels_agree_where_each_yes_and_no_does():
    expected = np.array([[3.0, -3.0], [-3.0, 3.0], [3.0, 3.0], [0.01, -3.0]] * 10, dtype=np.float32)
    got = expected.copy()
    got[3::4, 0] = -0.01  # undecided in FP32
    figures = compare_outputs(got, expected, "sigmoid")
    assert (figures.agreement, figures.agreement_decided, figures.decided) == (0.75, 1.0, 40)
    got[0, 1] = 3.0
    assert compare_outputs(got, expected, "sigmoid").agreement_decided == 0.975


@pytest.mark.parametrize(
    ("changes", "served"),
    [
        ({}, True),
        ({"agreement_decided": 0.97}, False),
        ({"agreement_decided": float("nan")}, False),
        # What FP32 hardly decides cannot reject, however it is answered.
        ({"decided": 60, "agreement": 0.6, "agreement_undecided": 0.0}, True),
        ({"decided": 60, "agreement_decided": 0.95}, False),
        # At least half of the inputs, and eight, must be decided.
        ({"decided": 50, "agreement_decided": 1.0}, True),
        ({"decided": 49, "agreement_decided": 1.0}, False),
        ({"samples": 10, "decided": 7, "agreement_decided": 1.0}, False),
        ({"decided": 0, "agreement_decided": None}, False),
    ],
)
def test_without_labels_agreement_decides_where_fp32_does(changes, served):
    assert (judge(dataclasses.replace(GOOD, **changes), Thresholds()) is None) == served


def test_undecided_inputs_are_counted_apart():
    expected = np.zeros((5, 2), dtype=np.float32)
    # A margin of m between two classes is a difference of 2·artanh(m) between their logits.
    expected[:, 0] = 2 * np.arctanh([0.5, 0.5, 1.01 * UNDECIDED_MARGIN, 0.99 * UNDECIDED_MARGIN, 0.001])
    got = expected.copy()
    got[3:, 1] = 1.0
    held_out = Dataset(source="mine", bodies=(b"",) * 5)
    figures = compare(
        got, expected, held_out=held_out, labels=CLASSES, activation="softmax", thresholds=Thresholds()
    )
    assert (figures.decided, figures.agreement) == (3, 0.6)
    assert (figures.agreement_decided, figures.agreement_undecided) == (1.0, 0.0)


def test_figures_follow_from_the_logits():
    held_out = Dataset(source="mine", bodies=(b"a", b"b", b"c", b"d"), labels=("cat", "dog", "cat", "dog"))
    expected = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]], dtype=np.float32)
    got = expected.copy()
    got[3] = [0.0, 2.0]
    figures = compare(
        got, expected, held_out=held_out, labels=CLASSES, activation="softmax", thresholds=Thresholds()
    )
    assert (figures.samples, figures.agreement, figures.least_cosine) == (4, 0.75, -1.0)
    assert figures.largest_probability_difference == pytest.approx(0.7616, abs=1e-4)
    assert (figures.labelled_accuracy_fp32, figures.labelled_accuracy) == (0.75, 1.0)
    assert (figures.labelled_loss_points, figures.labelled_guess) == (-25.0, 0.5)


def test_embeddings_pass_by_cosine_and_by_rank():
    chance = np.random.RandomState(0)
    expected = chance.normal(0, 1, (40, 16)).astype(np.float32)
    near = expected + chance.normal(0, 0.02, expected.shape).astype(np.float32)
    figures = compare_outputs(near, expected, "embedding")
    assert judge(figures, Thresholds()) is None
    assert figures.mean_cosine > 0.999
    assert figures.rank_correlation > 0.99
    far = expected + chance.normal(0, 1, expected.shape).astype(np.float32)
    assert "mean cosine" in judge(compare_outputs(far, expected, "embedding"), Thresholds())


def test_embeddings_that_all_point_one_way_are_validated_by_rank():
    """Their cosine to FP32's says nothing: a constant has it too."""
    chance = np.random.RandomState(0)
    common = chance.normal(0, 1, 16)
    expected = (20 * common + chance.normal(0, 1, (40, 16))).astype(np.float32)
    constant = (20 * common + chance.normal(0, 1, (40, 16))).astype(np.float32)
    figures = compare_outputs(constant, expected, "embedding")
    assert figures.mean_cosine > 0.99
    assert "rank correlation" in judge(figures, Thresholds())
