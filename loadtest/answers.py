"""Judges answers: right within the archive's tolerance of the precision served, and no other payload's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.records import NO_ANSWER, Records

EXAMPLES = 3
"""Wrong answers that are shown; one bug mostly shows the same way each time."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far a probability may be from the expected one."""

    relative: float
    absolute: float

    def allow(self, expected: float) -> float:
        return self.absolute + self.relative * expected


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What each payload's answer must be."""

    source: str
    """Where the expected answers come from, in words for the report."""
    answers: tuple[Any, ...]
    """Of each payload, at the precision that is served."""
    fp32: tuple[Any, ...] | None
    """Of each payload, by the eager FP32 model; None when no archive was at hand."""
    tolerance: Tolerance
    proof: bool = True
    """False when they are the server's own answers, which prove only that it agrees with itself."""


@dataclass(frozen=True, kw_only=True)
class AnswerCheck:
    """What came of judging every answer of a run."""

    checked: int
    wrong: int
    examples: tuple[str, ...]
    source: str
    proof: bool
    fp32_agreement: float | None
    """Share of answers whose label is that of eager FP32, near ties left out."""
    pairs_told_apart: float
    """Share of pairs of payloads whose expected answers differ so much that a mix-up would be seen."""


def read_probabilities(answer: Any) -> dict[str, float]:
    """Label → probability of an image model's list, or a text model's object."""
    try:
        if isinstance(answer, list):
            return {str(entry["label"]): float(entry["probability"]) for entry in answer}
        return {str(label): float(p) for label, p in answer["probabilities"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def find_fault(answer: Any, expected: Any, tolerance: Tolerance) -> str | None:
    """None when right, else what is wrong."""
    got, wanted = read_probabilities(answer), read_probabilities(expected)
    if not got:
        return f"no answer of this model: {json.dumps(answer)[:120]}"
    label = max(wanted, key=lambda one: wanted[one])
    allowed = tolerance.allow(wanted[label])
    # An image model answers its best few labels: one left out has at most the least one's probability.
    likely = got.get(label, min(wanted[label], min(got.values())))
    if not abs(likely - wanted[label]) <= allowed:
        return f"expected {label!r} with {wanted[label]:.4f} ± {allowed:.4f}: got {likely:.4f}"
    best = max(got, key=lambda one: got[one])
    if best != label and wanted[label] - wanted.get(best, 0.0) > 2 * allowed:
        return f"expected {label!r}: got {best!r} with {got[best]:.4f}"
    return None


def check_answers(runs: Sequence[Records], expected: Expected) -> AnswerCheck:
    """Judge every answer that was kept; equal ones to one payload are judged once."""
    checked, wrong = 0, 0
    examples: list[str] = []
    verdicts: list[tuple[int, Any, int]] = []
    for records in runs:
        for payload, number, count in _count_answers(records):
            answer = _parse(records.answers[number])
            fault = find_fault(answer, expected.answers[payload], expected.tolerance)
            checked += count
            wrong += count if fault else 0
            if fault and len(examples) < EXAMPLES:
                examples.append(f"payload {payload}: {fault}")
            verdicts.append((payload, answer, count))
    return AnswerCheck(
        checked=checked,
        wrong=wrong,
        examples=tuple(examples),
        source=expected.source,
        proof=expected.proof,
        fp32_agreement=None if expected.fp32 is None else _find_agreement(verdicts, expected.fp32),
        pairs_told_apart=find_pairs_told_apart(expected),
    )


def _count_answers(records: Records) -> list[tuple[int, int, int]]:
    good = records.take(records.good & (records.answer != NO_ANSWER))
    pairs = np.stack([good.payload, good.answer], axis=1).astype(int)
    unique, counts = np.unique(pairs, axis=0, return_counts=True)
    return [(int(p), int(a), int(n)) for (p, a), n in zip(unique, counts, strict=True)]


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


NEAR_TIE = 0.02
"""Labels this close in FP32 may change places in any other arithmetic."""


def _find_agreement(verdicts: Sequence[tuple[int, Any, int]], fp32: Sequence[Any]) -> float | None:
    same, all_ = 0, 0
    for payload, answer, count in verdicts:
        wanted, got = read_probabilities(fp32[payload]), read_probabilities(answer)
        if is_near_tie(wanted):
            continue
        all_ += count
        same += count if got and find_best(got) == find_best(wanted) else 0
    return same / all_ if all_ else None


def is_near_tie(wanted: Mapping[str, float]) -> bool:
    """Whether the two best labels are too close for other arithmetic to tell apart."""
    ranked = sorted(wanted.values(), reverse=True)
    return len(ranked) > 1 and ranked[0] - ranked[1] <= NEAR_TIE


def find_best(probabilities: Mapping[str, float]) -> str:
    """The label with the highest probability."""
    return max(probabilities, key=lambda one: probabilities[one])


def find_pairs_told_apart(expected: Expected) -> float:
    """1.0 for a single payload, which cannot be mixed up."""
    count = len(expected.answers)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    seen = [find_fault(expected.answers[a], expected.answers[b], expected.tolerance) for a, b in pairs]
    return sum(fault is not None for fault in seen) / len(pairs) if pairs else 1.0
