"""What the gate sees of one precision: its answers beside those of FP32 eager on the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from handlers.shared.outputs import NONE, SIGMOID, SOFTMAX, activate
from models.data import Dataset
from models.definition import Thresholds
from models.errors import BuildError
from models.gate.intervals import count_needed, find_interval

DIGITS = 5
EMBEDDING = "embedding"
"""Outputs that are compared by cosine; beside the activations of handlers/shared/outputs.py."""
UNDECIDED_MARGIN = 0.02
"""Where FP32's best two classes are closer than this probability, its answer is nearly a guess: if its
probabilities are honest, the second class is right as often, but for two in a hundred. While at least half of
the inputs are decided, answering all others otherwise costs no more than the one point that may be lost."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How one precision compared with FP32 eager on the held-out inputs."""

    samples: int
    source: str
    """Where the held-out inputs come from."""
    calibration: str | None
    """Where INT8's calibration inputs come from."""
    agreement: float | None
    """Share of all inputs with the same answer: the top-1 class, or yes and no of every output where each is
    read by sigmoid; None where outputs are values."""
    largest_probability_difference: float
    """Of a value, where outputs are values or embeddings."""
    least_cosine: float
    """Of the logits over the inputs, centred where a softmax reads them."""
    decided: int
    """Inputs where FP32's best two classes, or yes and no of an output, are at least UNDECIDED_MARGIN
    apart."""
    explained: float | None = None
    """Where each output is read by itself: 1 − Σ(got − FP32)² / Σ(FP32 − its mean)² over the inputs (R²); of
    the worst output where outputs are values, which may have different units, else of all together."""
    mean_cosine: float | None = None
    """Of embeddings, to FP32's of the same input."""
    rank_correlation: float | None = None
    """Of embeddings: Spearman's, of each input's similarities to all others with those of FP32; the mean."""
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
    activation: str,
    thresholds: Thresholds,
    calibration: str | None = None,
    recipe: str | None = None,
) -> Figures:
    """Figures from two logits arrays, float32 (inputs, outputs)."""
    read = partial(_activate, activation=activation)
    centre = activation == SOFTMAX
    a, b = (logits - logits.mean(axis=1, keepdims=True) * centre for logits in (got, expected))
    cosine = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)
    return Figures(
        samples=len(got),
        source=held_out.source,
        calibration=calibration,
        recipe=recipe,
        largest_probability_difference=round(float(np.abs(read(got) - read(expected)).max()), DIGITS),
        least_cosine=round(float(cosine.min()), DIGITS),
        explained=_explain(got, expected, activation) if activation in (SIGMOID, NONE) else None,
        **(_compare_embeddings(got, expected, cosine) if activation == EMBEDDING else {}),
        **_compare_answers(got, expected, activation),
        **_compare_labelled(got, expected, held_out, labels, thresholds.labelled_loss_points),
    )


def _activate(logits: np.ndarray, activation: str) -> np.ndarray:
    return activate(torch.from_numpy(logits), activation).numpy()


def _compare_answers(got: np.ndarray, expected: np.ndarray, activation: str) -> dict[str, Any]:
    if activation in (NONE, EMBEDDING):
        return {"agreement": None, "decided": 0}
    p_expected = _activate(expected, activation)
    if activation == SIGMOID:
        # Yes and no are two classes, of p and 1 − p.
        clear = np.abs(2 * p_expected - 1) >= UNDECIDED_MARGIN
        alike = (got >= 0) == (expected >= 0)
        same, same_clear, decided = alike.all(axis=1), (alike | ~clear).all(axis=1), clear.any(axis=1)
    else:
        best_two = np.sort(p_expected, axis=1)[:, -2:]
        decided = best_two[:, 1] - best_two[:, 0] >= UNDECIDED_MARGIN
        same = same_clear = got.argmax(axis=1) == expected.argmax(axis=1)
    return {
        "agreement": _share(same),
        "decided": int(decided.sum()),
        "agreement_decided": _share(same_clear[decided]),
        "agreement_undecided": _share(same[~decided]),
    }


def _compare_embeddings(got: np.ndarray, expected: np.ndarray, cosine: np.ndarray) -> dict[str, Any]:
    ranks = []
    for vectors in (got, expected):
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        others = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)].reshape(len(unit), -1)
        ranks.append(others.argsort(axis=1).argsort(axis=1).astype(np.float64))
    # Without ties, Spearman's correlation is Pearson's of the ranks, whose mean and spread are the same here.
    centred = [one - one.mean() for one in ranks]
    correlation = (centred[0] * centred[1]).sum(axis=1) / (centred[1] ** 2).sum(axis=1)
    return {
        "mean_cosine": round(float(cosine.mean()), DIGITS),
        "rank_correlation": round(float(correlation.mean()), DIGITS),
    }


def _explain(got: np.ndarray, expected: np.ndarray, activation: str) -> float:
    errors = ((got - expected) ** 2).sum(axis=0)
    spread = ((expected - expected.mean(axis=0)) ** 2).sum(axis=0)
    if activation == SIGMOID:
        errors, spread = errors.sum(), spread.sum()
    return round(float((1 - errors / np.maximum(spread, 1e-12)).min()), DIGITS)


def _share(these: np.ndarray) -> float | None:
    return round(float(these.mean()), DIGITS) if len(these) else None


def check_labels(held_out: Dataset, labels: Sequence[str], activation: str) -> None:
    """BuildError where inputs have labels that the model never answers: they would count as lost by all."""
    if held_out.labels is not None and activation != SOFTMAX:
        raise BuildError(
            f"the labels of {held_out.source} are names of one class of several, which this model does not "
            f"choose among (its outputs are read by {activation}); give the inputs without labels"
        )
    unknown = sorted(set(held_out.labels or ()) - set(labels))
    if unknown:
        raise BuildError(
            f"the labels of {held_out.source} must be classes of the model ({_name(labels)}): "
            f"got {_name(unknown)}; name them as the model does, or give the inputs without labels"
        )


def _name(labels: Sequence[str], most: int = 4) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    # As Python writes them: a byte order mark, or a blank that is none, is seen.
    return ", ".join(map(repr, labels[:most])) + more


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
