"""Whether an answer is the expected one, for any model: one rule for start, health, verify and load tests.

Classifiers are validated by their best label; anything else as JSON, with room for another arithmetic's
rounding. Standard library alone.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT_KEYS = {"label", "labels", "probabilities", "scores", "truncated"}
IMAGE_KEYS = ({"label", "index", "probability"}, {"label", "index", "score"})
"""Of a text classifier's answer, and of each of an image classifier's best few; more is no classifier's."""
VECTOR = 8
"""So many floats in a list are an embedding, compared as a whole: under INT8 a component near 0 may change
its sign, and the vector still points the same way. A box has four."""
SHOWN = 80
"""Characters of a value, in a message."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far a number may be from the expected one."""

    relative: float
    absolute: float

    def allow(self, expected: float) -> float:
        return self.absolute + self.relative * abs(expected)


def find_fault(actual: Any, expected: Any, tolerance: Tolerance, path: str = "") -> str | None:
    """None when right, else what is wrong and where; `path` is of both in the whole JSON."""
    if _list_scores(expected):
        fault = _judge_scores(actual, expected, tolerance)
        return f"{path}: {fault}" if fault and path else fault
    return _find_json_fault(actual, expected, tolerance, path)


def read_scores(*answers: Any) -> list[dict[str, float]]:
    """Label → score of each answer, empty where it is no classifier's. A label that occurs twice in one of
    them is left out of all: ImageNet has two classes "crane", and nobody can tell which is meant."""
    listed = [_list_scores(answer) for answer in answers]
    counts = [Counter(label for label, _ in pairs) for pairs in listed]
    twice = {label for count in counts for label, times in count.items() if times > 1}
    return [{label: score for label, score in pairs if label not in twice} for pairs in listed]


def find_best(scores: Mapping[str, float]) -> str:
    """The label with the highest score."""
    return max(scores, key=lambda label: scores[label])


def _list_scores(answer: Any) -> list[tuple[str, float]]:
    """In the answer's order; none of what is no classifier's."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(answer, dict) and answer.keys() <= TEXT_KEYS:
        scores = answer.get("probabilities", answer.get("scores"))
        pairs = list(scores.items()) if isinstance(scores, dict) else []
    elif isinstance(answer, list) and all(
        isinstance(one, dict) and one.keys() in IMAGE_KEYS for one in answer
    ):
        pairs = [(one["label"], one.get("probability", one.get("score"))) for one in answer]
    good = all(isinstance(label, str) and _is_number(score) for label, score in pairs)
    return pairs if good else []


def _judge_scores(answer: Any, expected: Any, tolerance: Tolerance) -> str | None:
    actual, wanted = read_scores(answer, expected)
    if not wanted:
        return f"the best labels must have different names: got {_show(expected)}"
    if not actual:
        return f"no answer of this model: {_show(answer)}"
    label = find_best(wanted)
    allowed = tolerance.allow(wanted[label])
    # An image model answers its best few labels: one left out has at most the least one's score.
    likely = actual.get(label, min(wanted[label], min(actual.values())))
    if not abs(likely - wanted[label]) <= allowed:  # `not <=` is also true for NaN
        return f"expected {label!r} with {wanted[label]:.4f} ± {allowed:.4f}: got {likely:.4f}"
    if any(map(math.isnan, actual.values())):
        return f"expected numbers: got {_show(answer)}"
    best = find_best(actual)
    if best != label and wanted[label] - wanted.get(best, 0.0) > 2 * allowed:
        return f"expected {label!r}: got {best!r} with {actual[best]:.4f}"
    return None


def _find_json_fault(actual: Any, expected: Any, tolerance: Tolerance, path: str) -> str | None:
    """Same structure, strings, whole numbers and booleans exactly, other numbers within the tolerance."""
    where = f"{path}: " if path else ""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if actual.keys() != expected.keys():
            return f"{where}expected the keys {', '.join(expected)}: got {', '.join(actual)}"
        inner = [(actual[key], one, f"{path}.{key}" if path else key) for key, one in expected.items()]
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return f"{where}expected {len(expected)} items: got {len(actual)}"
        if _is_vector(actual) and _is_vector(expected):
            norm, distance = math.hypot(*expected), math.dist(actual, expected)
            allowed = (tolerance.absolute + tolerance.relative) * norm
            wanted = f"{where}expected a vector of norm {norm:.4g} within {allowed:.2g}"
            return None if distance <= allowed else f"{wanted}: got one {distance:.2g} away"
        inner = [(actual[n], one, f"{path}[{n}]") for n, one in enumerate(expected)]
    elif _is_number(expected) and _is_number(actual) and float in (type(expected), type(actual)):
        allowed = tolerance.allow(expected)
        good = expected - allowed <= actual <= expected + allowed  # false for NaN
        return None if good else f"{where}expected {expected:.4g} ± {allowed:.2g}: got {actual:.4g}"
    else:
        good = type(actual) is type(expected) and actual == expected
        return None if good else f"{where}expected {_show(expected)}: got {_show(actual)}"
    faults = (find_fault(one, wanted, tolerance, place) for one, wanted, place in inner)
    return next((fault for fault in faults if fault), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_vector(value: list[Any]) -> bool:
    return len(value) >= VECTOR and all(isinstance(one, float) for one in value)


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:SHOWN]
