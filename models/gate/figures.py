"""What the gate sees of one precision: its answers beside those of FP32 eager on the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.data import Dataset
from models.errors import BuildError
from models.gate.intervals import count_needed, find_interval

DIGITS = 5
UNDECIDED_MARGIN = 0.02
"""Where FP32's best two classes are closer than this probability, its answer is nearly a guess: if its
probabilities are honest, the second class is right as often, but for two in a hundred. While at least half of
the inputs are decided, answering all others otherwise costs no more than the one point that may be lost."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a precision must reach; the definition's `accuracy_gate`."""

    agreement: float = 0.99
    """Where no labels decide: share of the inputs that FP32 decides with the same top-1 answer."""
    labelled_loss_points: float = 1.0
    """Percentage points of labelled accuracy that may be lost."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How one precision compared with FP32 eager on the held-out inputs."""

    samples: int
    source: str
    """Where the held-out inputs come from."""
    calibration: str | None
    """Where INT8's calibration inputs come from."""
    agreement: float
    """Share of all inputs with the same top-1 answer."""
    largest_probability_difference: float
    least_cosine: float
    """Of the centred logits, over the inputs."""
    decided: int
    """Inputs where FP32's best two classes are at least UNDECIDED_MARGIN apart."""
    agreement_decided: float | None = None
    """Share of these with the same top-1 answer; None where there are none."""
    agreement_undecided: float | None = None
    """The same of all others, which decide nothing."""
    recipe: str | None = None
    """How INT8 was reached."""
    relative_error: float | None = None
    """Of INT8's logits on the archive's examples: what the self-check of a load must expect."""
    wide_sums: bool | None = None
    """Whether INT8 was calibrated on a CPU that adds its products in 32 bits: none but such may serve it."""
    labelled_accuracy: float | None = None
    """Share of right answers, where labels were given."""
    labelled_accuracy_fp32: float | None = None
    labelled_guess: float | None = None
    """Share that one and the same answer gets right: FP32 must be better, or its labels say nothing."""
    labelled_loss_points: float | None = None
    """Percentage points of accuracy lost against FP32; below 0 where more answers are right."""
    labelled_loss_interval_points: tuple[float, float] | None = None
    """What that loss may be, at 95 %, for other inputs of the same kind."""
    labelled_loss_allowed_points: float | None = None
    labelled_loss_shown: bool | None = None
    """Whether the whole interval is within what is allowed."""
    labelled_inputs_needed: int | None = None
    """About how many labelled inputs would show it; None where it is shown, or where no number would."""


def compare(
    got: np.ndarray,
    expected: np.ndarray,
    *,
    held_out: Dataset,
    labels: Sequence[str],
    thresholds: Thresholds,
    calibration: str | None = None,
    recipe: str | None = None,
) -> Figures:
    """Figures from two logits arrays, float32 (inputs, classes)."""
    p_got, p_expected = softmax(got), softmax(expected)
    a, b = got - got.mean(axis=1, keepdims=True), expected - expected.mean(axis=1, keepdims=True)
    cosine = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)
    same = got.argmax(axis=1) == expected.argmax(axis=1)
    best_two = np.sort(p_expected, axis=1)[:, -2:]
    decided = best_two[:, 1] - best_two[:, 0] >= UNDECIDED_MARGIN
    return Figures(
        samples=len(got),
        source=held_out.source,
        calibration=calibration,
        recipe=recipe,
        agreement=round(float(same.mean()), DIGITS),
        largest_probability_difference=round(float(np.abs(p_got - p_expected).max()), DIGITS),
        least_cosine=round(float(cosine.min()), DIGITS),
        decided=int(decided.sum()),
        agreement_decided=_share(same[decided]),
        agreement_undecided=_share(same[~decided]),
        **_compare_labelled(got, expected, held_out, labels, thresholds.labelled_loss_points),
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float32 (inputs, classes)."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _share(these: np.ndarray) -> float | None:
    return round(float(these.mean()), DIGITS) if len(these) else None


def check_labels(held_out: Dataset, labels: Sequence[str]) -> None:
    """BuildError where inputs have labels that the model never answers: they would count as lost by all."""
    unknown = sorted(set(held_out.labels or ()) - set(labels))
    if unknown:
        raise BuildError(
            f"the labels of {held_out.source} must be classes of the model ({_name(labels)}): "
            f"got {_name(unknown)}; name them as the model does, or give the inputs without labels"
        )


def _name(labels: Sequence[str], most: int = 4) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def _compare_labelled(
    got: np.ndarray, expected: np.ndarray, held_out: Dataset, labels: Sequence[str], allowed_points: float
) -> dict[str, Any]:
    if held_out.labels is None:
        return {}
    right, right_fp32 = (_find_right(logits, held_out.labels, labels) for logits in (got, expected))
    samples, allowed = len(right), allowed_points / 100
    lost, gained = int((right_fp32 & ~right).sum()), int((right & ~right_fp32).sum())
    low, high = find_interval(lost, gained, samples)
    shown = high <= allowed
    return {
        "labelled_accuracy": round(float(right.mean()), DIGITS),
        "labelled_accuracy_fp32": round(float(right_fp32.mean()), DIGITS),
        "labelled_guess": round(Counter(held_out.labels).most_common(1)[0][1] / samples, DIGITS),
        "labelled_loss_points": round(100 * (lost - gained) / samples, DIGITS),
        "labelled_loss_interval_points": (round(100 * low, 2), round(100 * high, 2)),
        "labelled_loss_allowed_points": allowed_points,
        "labelled_loss_shown": shown,
        "labelled_inputs_needed": None if shown else count_needed(lost, gained, samples, allowed),
    }


def _find_right(logits: np.ndarray, answers: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Which inputs are answered right, by name: two classes may share one."""
    pairs = zip(logits.argmax(axis=1), answers, strict=True)
    return np.array([labels[best] == answer for best, answer in pairs])
