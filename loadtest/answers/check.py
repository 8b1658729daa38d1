"""Judges answers: right within the archive's tolerance of the precision served, and no other payload's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.drivers.records import NO_ANSWER, Records
from server.archives import read_scores as read_own

EXAMPLES = 3
"""Wrong answers that are shown; one bug mostly shows the same way each time."""
NEAR_TIE = 0.02
"""Labels this close in FP32 may change places in any other arithmetic."""
MOST_COMPARED = 64
"""Payloads whose pairs are compared: all pairs of hundreds would take seconds."""


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
    tolerances: tuple[Tolerance, ...]
    """Of each payload, as its model has it."""
    fp32: tuple[Any, ...] | None
    """Of each payload, by the eager FP32 model; None when no archive was at hand."""
    proof: bool = True
    """False when they are the server's own answers, which prove only that it agrees with itself."""
    pairs_told_apart: float = 1.0
    """Share of pairs of payloads whose expected answers differ so much that a mix-up would be seen."""


@dataclass(frozen=True, kw_only=True)
class AnswerCheck:
    """What came of judging every answer of a run."""

    checked: int
    wrong: int
    examples: tuple[str, ...] = ()
    source: str = ""
    proof: bool = True
    """False: compared with the server's own answers alone."""
    labels_judged: int = 0
    """Answers whose label was compared with that of eager FP32, near ties left out; 0 without FP32."""
    labels_same: int = 0
    largest_difference: float | None = None
    """Of a probability to eager FP32's, over all answers; None without FP32."""
    pairs_told_apart: float = 1.0
    """Share of pairs of payloads whose expected answers differ so much that a mix-up would be seen."""


def read_probabilities(answer: Any) -> dict[str, float]:
    """Label → probability of an image model's list, a text model's object, or an object of nothing else.

    The last is what TorchServe's own image_classifier answers. Empty when it is none of them.
    """
    return read_own(answer) or _read_bare(answer)


def _read_bare(answer: Any) -> dict[str, float]:
    try:
        bare = {str(label): float(p) for label, p in answer.items()}
    except (TypeError, ValueError, AttributeError):
        return {}
    return bare if all(0 <= p <= 1 for p in bare.values()) else {}


def find_fault(answer: Any, expected: Any, tolerance: Tolerance) -> str | None:
    """None when right, else what is wrong."""
    got, wanted = read_probabilities(answer), read_probabilities(expected)
    if not got:
        return f"no answer of this model: {json.dumps(answer)[:120]}"
    label = find_best(wanted)
    allowed = tolerance.allow(wanted[label])
    # An image model answers its best few labels: one left out has at most the least one's probability.
    likely = got.get(label, min(wanted[label], min(got.values())))
    if not abs(likely - wanted[label]) <= allowed:
        return f"expected {label!r} with {wanted[label]:.4f} ± {allowed:.4f}: got {likely:.4f}"
    best = find_best(got)
    if best != label and wanted[label] - wanted.get(best, 0.0) > 2 * allowed:
        return f"expected {label!r}: got {best!r} with {got[best]:.4f}"
    return None


def check_answers(runs: Sequence[Records], expected: Expected) -> AnswerCheck:
    """Judge every answer that was kept; equal ones to one payload are judged once."""
    seen = [one for records in runs for one in _count_answers(records)]
    faults = [
        (payload, find_fault(answer, expected.answers[payload], expected.tolerances[payload]), count)
        for payload, answer, count in seen
    ]
    wrong = [(payload, fault, count) for payload, fault, count in faults if fault]
    judged, same, largest = (0, 0, None) if expected.fp32 is None else _compare(seen, expected.fp32)
    return AnswerCheck(
        checked=sum(count for *_, count in seen),
        wrong=sum(count for *_, count in wrong),
        examples=tuple(f"payload {payload}: {fault}" for payload, fault, _ in wrong[:EXAMPLES]),
        source=expected.source,
        proof=expected.proof,
        labels_judged=judged,
        labels_same=same,
        largest_difference=largest,
        pairs_told_apart=expected.pairs_told_apart,
    )


def _compare(seen: Sequence[tuple[int, Any, int]], fp32: Sequence[Any]) -> tuple[int, int, float | None]:
    """(labels judged, those that are the same, largest difference) with eager FP32."""
    judged, same, differences = 0, 0, []
    for payload, answer, count in seen:
        got, wanted = read_probabilities(answer), read_probabilities(fp32[payload])
        if got:
            differences.append(find_difference(got, wanted))
        if not is_near_tie(wanted):
            judged += count
            same += count if got and find_best(got) == find_best(wanted) else 0
    return judged, same, max(differences, default=None)


def add_checks(checks: Sequence[AnswerCheck]) -> AnswerCheck:
    """Of several trials together."""
    differences = [one.largest_difference for one in checks if one.largest_difference is not None]
    return AnswerCheck(
        checked=sum(one.checked for one in checks),
        wrong=sum(one.wrong for one in checks),
        examples=tuple(example for one in checks for example in one.examples)[:EXAMPLES],
        source="; ".join(dict.fromkeys(one.source for one in checks)),
        proof=all(one.proof for one in checks),
        labels_judged=sum(one.labels_judged for one in checks),
        labels_same=sum(one.labels_same for one in checks),
        largest_difference=max(differences, default=None),
        pairs_told_apart=min((one.pairs_told_apart for one in checks), default=1.0),
    )


def _count_answers(records: Records) -> Iterator[tuple[int, Any, int]]:
    """(payload, one of its different answers, how often it came)."""
    good = records.take(records.good & (records.answer != NO_ANSWER))
    pairs = np.stack([good.payload, good.answer], axis=1).astype(int)
    unique, counts = np.unique(pairs, axis=0, return_counts=True)
    for (payload, number), count in zip(unique.tolist(), counts.tolist(), strict=True):
        yield payload, _parse(records.answers[number]), count


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def is_near_tie(wanted: Mapping[str, float]) -> bool:
    """Whether the two best labels are too close for other arithmetic to tell apart."""
    ranked = sorted(wanted.values(), reverse=True)
    return len(ranked) > 1 and ranked[0] - ranked[1] <= NEAR_TIE


def find_best(probabilities: Mapping[str, float]) -> str:
    """The label with the highest probability."""
    return max(probabilities, key=lambda one: probabilities[one])


def find_difference(got: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """The largest of a probability; one left out of the best few has at most the least one's."""
    least = min(got.values())
    return max(abs(got.get(label, min(least, p)) - p) for label, p in wanted.items())


def find_pairs_told_apart(known: Sequence[tuple[Any, Tolerance]]) -> float:
    """Over evenly chosen payloads; 1.0 for a single one, which cannot be mixed up."""
    chosen = [known[number] for number in range(0, len(known), -(-len(known) // MOST_COMPARED))]
    pairs = list(itertools.permutations(chosen, 2))
    seen = [find_fault(answer, expected, tolerance) for (answer, _), (expected, tolerance) in pairs]
    return sum(fault is not None for fault in seen) / len(pairs) if pairs else 1.0
