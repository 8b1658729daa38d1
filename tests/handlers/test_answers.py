"""One rule for what a right answer is: planted errors are found, another arithmetic's rounding is none."""

from __future__ import annotations

import copy
import math

import pytest

from handlers.answers import Tolerance, find_fault, read_scores

TIGHT = Tolerance(relative=0.01, absolute=0.001)
LOOSE = Tolerance(relative=0.0, absolute=0.2)


def text(good):
    return {"label": "good" if good > 0.5 else "bad", "probabilities": {"good": good, "bad": 1 - good}}


def image(*pairs, **probabilities):
    listed = enumerate([*pairs, *sorted(probabilities.items(), key=lambda pair: -pair[1])])
    return [{"label": label, "index": n, "probability": p} for n, (label, p) in listed]


CAT = image(cat=0.5, dog=0.3)


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "fault"),
    [
        (text(0.905), text(0.9), TIGHT, None),
        (text(0.92), text(0.9), TIGHT, "expected 'good' with 0.9000 ± 0.0100: got 0.9200"),
        (text(math.nan), text(0.9), TIGHT, "expected 'good' with 0.9000"),
        ({"probabilities": {"good": 0.9, "bad": math.nan}}, text(0.9), TIGHT, "expected numbers"),
        ({**text(0.9), "truncated": {"tokens": 600}}, text(0.9), TIGHT, None),
        ({"code": 503}, text(0.9), TIGHT, "no answer of this model"),
        ({"probabilities": {"good": "likely"}}, text(0.9), TIGHT, "no answer of this model"),
        ([], CAT, TIGHT, "no answer of this model"),
        ("cat", CAT, TIGHT, "no answer of this model"),
        (None, CAT, TIGHT, "no answer of this model"),
        (CAT, CAT, TIGHT, None),
        # Left out of the best few, it may have as much as the least of them.
        (image(dog=0.3, cow=0.2999), image(cat=0.3, dog=0.3), TIGHT, None),
        (image(dog=0.9, cat=0.75), image(cat=0.9, dog=0.05), LOOSE, "expected 'cat': got 'dog' with 0.9000"),
        # A value of a regression is validated by its size, below zero too.
        ({"scores": {"stars": -2.01}}, {"scores": {"stars": -2.0}}, TIGHT, None),
        ({"scores": {"stars": -1.5}}, {"scores": {"stars": -2.0}}, TIGHT, "expected 'stars' with -2.0000"),
        ([text(0.9), text(0.2)], [text(0.9), text(0.2)], TIGHT, None),
        ([text(0.9), text(0.9)], [text(0.9), text(0.2)], TIGHT, "[1]: expected 'bad' with 0.8000"),
        ([text(0.9)], [text(0.9), text(0.2)], TIGHT, "expected 2 items: got 1"),
    ],
)
def test_classifiers_are_validated_by_their_best_label(got, expected, tolerance, fault):
    found = find_fault(got, expected, tolerance)
    assert found is None if fault is None else found and found.startswith(fault)


def test_a_label_that_occurs_twice_in_either_answer_is_not_compared():
    """Of ImageNet's two cranes nobody can tell which is meant; the next label decides."""
    birds = image(("crane", 0.5), ("dog", 0.3), ("crane", 0.1))
    assert find_fault(birds, birds, TIGHT) is None
    assert find_fault(image(crane=0.1, dog=0.3), birds, TIGHT) is None
    assert find_fault(birds, image(crane=0.5, dog=0.3), TIGHT) is None
    assert "expected 'dog' with 0.3000" in find_fault(image(crane=0.5, dog=0.2), birds, TIGHT)
    cranes = image(("crane", 0.5), ("crane", 0.1))
    assert "must have different names" in find_fault(cranes, cranes, TIGHT)
    assert read_scores(birds, image(crane=0.5, cow=0.1)) == [{"dog": 0.3}, {"cow": 0.1}]


BOXES = {
    "boxes": [{"label": "cat", "score": 0.91, "box": [1.5, 2.0, 30.25, 40.0]},
              {"label": "dog", "score": 0.5, "box": [0.0, 1.0, 2.0, 3.0]}],
    "size": [640, 427], "flipped": False, "note": None,
}  # fmt: skip
ENTITIES = {"entities": [{"text": "Ada", "label": "PER", "score": 0.99, "start": 0, "end": 3}]}


def change(answer, *place, to):
    """A copy with another value at a place."""
    changed = copy.deepcopy(answer)
    inner = changed
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = to
    return changed


@pytest.mark.parametrize("answer", [BOXES, ENTITIES, [], {}, "text", 3, 1.5, None, True, [[1.0, 2.0]]])
def test_anything_is_the_same_as_itself(answer):
    assert find_fault(answer, answer, Tolerance(relative=0.0, absolute=0.0)) is None
    assert read_scores(answer) == [{}]


@pytest.mark.parametrize(
    ("answer", "place", "to", "fault"),
    [
        (BOXES, ["boxes", 0, "score"], 0.4, "boxes[0].score: expected 0.91 ± 0.01: got 0.4"),
        (BOXES, ["boxes", 0, "score"], 0.915, None),
        (BOXES, ["boxes", 1, "box", 0], 0, None),  # a clamped one: JSON has numbers
        (BOXES, ["boxes", 1, "box", 2], math.nan, "boxes[1].box[2]: expected 2 ± 0.021: got nan"),
        (BOXES, ["boxes", 1, "box", 2], True, "boxes[1].box[2]: expected 2.0: got true"),
        (BOXES, ["boxes"], BOXES["boxes"][:1], "boxes: expected 2 items: got 1"),
        (BOXES, ["boxes", 0], {"label": "cat"}, "boxes[0]: expected the keys label, score, box: got label"),
        (BOXES, ["boxes", 0, "label"], "dog", 'boxes[0].label: expected "cat": got "dog"'),
        (BOXES, ["boxes", 0], [], 'boxes[0]: expected {"label": "cat"'),
        (BOXES, ["size", 0], 641, "size[0]: expected 640: got 641"),
        (BOXES, ["flipped"], 0, "flipped: expected false: got 0"),
        (BOXES, ["note"], "", 'note: expected null: got ""'),
        (ENTITIES, ["entities", 0, "start"], 1, "entities[0].start: expected 0: got 1"),
        (ENTITIES, ["entities", 0, "label"], "LOC", 'entities[0].label: expected "PER": got "LOC"'),
    ],
)
def test_anything_else_is_compared_as_json_and_the_place_is_told(answer, place, to, fault):
    found = find_fault(change(answer, *place, to=to), answer, TIGHT)
    assert found is None if fault is None else found and found.startswith(fault)


def test_embeddings_are_compared_as_vectors():
    """Components near 0 may change their sign; the whole may not turn."""
    expected = [0.5, -0.5, 0.5, 0.5, 0.0001, -0.0001, 0.0, 0.0]
    near = [0.501, -0.499, 0.5, 0.5, -0.0001, 0.0001, 0.002, -0.002]
    assert find_fault({"embedding": near}, {"embedding": expected}, TIGHT) is None
    assert find_fault([near, near], [expected, expected], TIGHT) is None
    other = find_fault({"embedding": expected[::-1]}, {"embedding": expected}, TIGHT)
    assert other == "embedding: expected a vector of norm 1 within 0.011: got one 1.4 away"
    assert find_fault([near, other], [expected, expected], TIGHT).startswith("[1]: expected [0.5")
    for wrong in (
        [*expected[:-1], math.nan],
        expected[:-1],
        [*expected[:-1], "0"],
        [-one for one in expected],
    ):
        assert find_fault(wrong, expected, TIGHT)
