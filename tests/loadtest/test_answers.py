"""Right, wrong and mixed-up answers are told apart; what is right comes from the archive, once."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from handlers.answers import Tolerance, find_fault
from loadtest import answers as module
from loadtest.answers import AnswerCheck, Expected, add_checks, check_answers
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload, make_text
from loadtest.rows import NO_ANSWER, make_rows
from loadtest.servers.base import Running
from server.archives import read_archive
from tests.loadtest.fake_server import answer_to
from tests.plans import make_model

TIGHT = Tolerance(relative=0.01, absolute=0.001)
LOOSE = Tolerance(relative=0.0, absolute=0.2)
TEXTS = [make_text(f"t{n}", text, model="tiny_text") for n, text in enumerate(("one", "two", "one"))]


def text(good):
    return {"label": "good" if good > 0.5 else "bad", "probabilities": {"good": good, "bad": 1 - good}}


def image(**probabilities):
    listed = enumerate(sorted(probabilities.items(), key=lambda pair: -pair[1]))
    return [{"label": label, "index": n, "probability": p} for n, (label, p) in listed]


def check(expected, *answered, status=200):
    """Of (payload, answer) each."""
    texts = list(dict.fromkeys(json.dumps(answer) for _, answer in answered))
    numbers = [(payload, texts.index(json.dumps(answer))) for payload, answer in answered]
    rows = [(payload, math.nan, 0, 1, status, number, "") for payload, number in numbers]
    return check_answers(make_rows(rows), texts, expected)


def expect(*answers, fp32=None, tolerances=None):
    known = zip(answers, tolerances or [TIGHT] * len(answers), strict=True)
    return Expected(source="test", fp32=fp32 or answers, answers=tuple(known), distinguishable_pairs=0.5)


TWO = expect(text(0.9), text(0.2))


def test_every_answer_is_validated_and_a_mix_up_is_wrong():
    found = check(TWO, *[(0, text(0.9))] * 5, (1, text(0.2)), (1, text(0.9)))
    assert (found.checked, found.wrong, found.labels_same, found.labels_compared) == (7, 1, 6, 7)
    assert found.examples == ("payload 1: expected 'bad' with 0.8000 ± 0.0090: got 0.1000",)
    assert found.largest_difference == pytest.approx(0.7)
    assert (found.source, found.distinguishable_pairs) == ("test", 0.5)
    # Each payload has the tolerance of its model.
    expected = expect(text(0.9), text(0.2), tolerances=(TIGHT, LOOSE))
    assert check(expected, (0, text(0.8)), (1, text(0.1))).wrong == 1


def test_failed_requests_and_those_without_an_answer_are_not_validated():
    assert check(TWO, (0, {"code": 503}), status=503) == replace(check(TWO), source="test")
    kept_none = make_rows([(0, math.nan, 0, 1, 200, NO_ANSWER, "")])
    assert check_answers(kept_none, [], TWO).checked == 0
    assert check(None, (0, text(0.9))) == AnswerCheck(source=module.NOT_VALIDATED)


def test_labels_alone_are_validated_where_no_answer_is_known():
    """As of plain TorchServe: another probability is right, no answer at all is wrong."""
    labels = Expected(source="labels", fp32=(image(cat=0.7, dog=0.2),), answers=None)
    found = check(labels, (0, {"cat": 0.5, "dog": 0.4}), (0, {"dog": 0.6, "cat": 0.3}), (0, {"code": 500}))
    assert (found.checked, found.wrong, found.labels_same, found.labels_compared) == (3, 1, 1, 3)
    assert found.largest_difference == pytest.approx(0.4)
    assert found.examples == ('payload 0: no answer of this model: {"code": 500}',)
    # A near tie does not count for agreement, but for the difference.
    tie = check(expect(image(cat=0.45, dog=0.44)), (0, image(dog=0.45, cat=0.44)))
    assert (tie.labels_compared, tie.largest_difference) == (0, pytest.approx(0.01))


def embed(*values):
    return {"embedding": [*values, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]}


OF_ANY_KIND = {
    "embeddings": (embed(0.9, -0.3), embed(-0.3, 0.9), embed(0.901, -0.301)),
    "boxes": (
        {"boxes": [{"label": "cat", "score": 0.9, "box": [0.0, 1.0, 2.0, 3.0]}]},
        {"boxes": []},
        {"boxes": [{"label": "cat", "score": 0.905, "box": [0.0, 1.0, 2.0, 3.0]}]},
    ),
    "entities": (
        {"entities": [{"text": "Ada", "label": "PER", "score": 0.99}]},
        {"entities": [{"text": "Ulm", "label": "LOC", "score": 0.99}]},
        {"entities": [{"text": "Ada", "label": "PER", "score": 0.985}]},
    ),
    "texts together": ([text(0.9), text(0.2)], [text(0.2), text(0.9)], [text(0.901), text(0.2)]),
}


@pytest.mark.parametrize("kind", OF_ANY_KIND)
def test_answers_of_any_model_are_validated_and_have_no_labels(kind):
    one, other, near = OF_ANY_KIND[kind]
    expected = expect(one, other)
    good = check(expected, (0, one), (1, other), (0, near))
    assert (good.checked, good.wrong, good.labels_compared, good.labels_same) == (3, 0, 0, 0)
    assert good.largest_difference is None
    swapped = check(expected, (0, other), (1, one))
    assert (swapped.wrong, len(swapped.examples)) == (2, 2)
    assert check(expected, (0, {"code": 500}), (0, "text"), (1, math.nan)).wrong == 3
    assert module.find_distinguishable_pairs(expected.answers) == 1.0
    assert module.find_distinguishable_pairs([(one, TIGHT), (near, TIGHT)]) == 0.0


def test_models_of_several_kinds_in_one_window_are_told_together():
    found = check(expect(text(0.9), embed(0.9, -0.3)), (0, text(0.85)), (1, embed(0.9, -0.3)))
    assert (found.checked, found.wrong, found.labels_compared, found.labels_same) == (2, 1, 1, 1)
    assert found.largest_difference == pytest.approx(0.05)


def test_several_windows_add_up():
    one, other = check(TWO, (0, text(0.9)), (1, text(0.8))), check(TWO, (0, text(0.899)))
    found = add_checks([one, other])
    assert (found.checked, found.wrong, len(found.examples)) == (3, 1, 1)
    assert (found.labels_same, found.labels_compared) == (2, 3)
    assert (found.largest_difference, found.source) == (pytest.approx(0.6), "test")
    assert add_checks([check(TWO)] * 2).largest_difference is None


def test_how_many_payloads_can_be_told_apart_is_known():
    known = [(text(good), TIGHT) for good in (0.9, 0.9, 0.2)]
    assert [module.find_distinguishable_pairs(known[n:]) for n in range(3)] == [
        pytest.approx(4 / 6),
        1.0,
        None,
    ]
    # Of many, evenly chosen ones are compared: of these 60, of which 30 are equal.
    many = [text(0.9)] * 300 + [text(0.55 + number / 1000) for number in range(300)]
    found = module.find_distinguishable_pairs([(one, Tolerance(relative=0, absolute=1e-4)) for one in many])
    assert found == pytest.approx(1 - 30 * 29 / (60 * 59))


@pytest.fixture
def computed(monkeypatch):
    """What was computed: (archive, precision, names of payloads)."""
    log = []

    def fake(archive, precision, payloads):
        log.append((archive.stem, precision, [one.name for one in payloads]))
        return [answer_to(one.body) for one in payloads]

    monkeypatch.setattr(module, "compute", fake)
    return log


def make_kit(archives, precision="bf16"):
    models = {name: make_model(name, precision=precision) for name in archives}
    return Running(name="kit", models=tuple(archives), plan=SimpleNamespace(models=models), archives=archives)


def find(running, payloads, cache):
    return module.find_expected(running, payloads, cache, lambda _: None)


def test_equal_payloads_are_computed_once_and_all_is_kept(computed, tiny_text_archive, tmp_path):
    kit = make_kit({"tiny_text": tiny_text_archive})
    first, again = (find(kit, TEXTS, tmp_path) for _ in range(2))
    assert first == again
    assert computed == [("tiny_text", how, ["t2", "t1"]) for how in ("eager fp32", "ipex bf16")]
    answers = tuple(answer_to(one.body) for one in TEXTS)
    assert (tuple(one for one, _ in first.answers), first.fp32) == (answers, answers)
    rules = read_archive(tiny_text_archive).definition.precisions["bf16"]
    known = {"relative": rules.answer_relative, "absolute": rules.answer_absolute}
    assert first.answers[0][1] == Tolerance(**known)
    assert (first.distinguishable_pairs, "the archive's own handler at bf16" in first.source) == (1.0, True)
    find(make_kit({"tiny_text": tiny_text_archive}, "fp32"), TEXTS[1:2], tmp_path)
    assert computed[2:] == [("tiny_text", "eager fp32", ["t1"])]


def test_payloads_of_several_models_come_back_in_order(computed, tiny_text_archive, tmp_path):
    other = Path(shutil.copy(tiny_text_archive, tmp_path / "tiny_image.mar"))
    # The same bytes for another model are another payload.
    photo = Payload(name="photo", body=TEXTS[0].body, content_type="image/jpeg", model="tiny_image")
    mixture = [TEXTS[0], photo, TEXTS[1]]
    found = find(make_kit({"tiny_text": tiny_text_archive, "tiny_image": other}), mixture, tmp_path)
    assert [one for one, _ in found.answers] == [answer_to(one.body) for one in mixture]
    asked = {(archive, precision): names for archive, precision, names in computed}
    assert (asked["tiny_text", "ipex bf16"], asked["tiny_image", "ipex bf16"]) == (["t0", "t1"], ["photo"])


def test_stock_is_held_to_labels_and_a_foreign_server_to_nothing(computed, tiny_text_archive, tmp_path):
    stock = Running(name="stock", models=("tiny_text",), archives={"tiny_text": tiny_text_archive})
    found = find(stock, TEXTS, tmp_path)
    assert (found.answers, found.source, found.distinguishable_pairs) == (None, "labels by eager FP32", None)
    assert [precision for _, precision, _ in computed] == ["eager fp32"]
    assert find(Running(name="url", url="http://127.0.0.1:1"), TEXTS, tmp_path) is None


def test_an_error_is_never_what_is_expected(tiny_text_archive, tmp_path):
    payload = Payload(name="no text", body=b"\xff", content_type="text/plain", model="tiny_text")
    for _ in range(2):  # nor is it kept
        with pytest.raises(LoadTestError, match=r'tiny_text\.mar must answer no text: got 4\d\d \{"code"'):
            find(make_kit({"tiny_text": tiny_text_archive}), [payload], tmp_path)


def test_the_archives_own_handler_answers_in_a_process_of_its_own(tiny_text_archive, tmp_path):
    archive = read_archive(tiny_text_archive)
    smoke = archive.definition.example
    payload = Payload(name="c", body=archive.body, content_type=smoke.content_type, model="tiny_text")
    # What its content type says is a text is one, whatever it looks like.
    braces = Payload(name="{", body=b'{"text": ', content_type="text/plain", model="tiny_text")
    found, other = module.compute(tiny_text_archive, "eager fp32", [payload, braces])
    assert find_fault(found, smoke.expected, Tolerance(relative=0.0, absolute=1e-3)) is None
    assert find_fault(other, smoke.expected, Tolerance(relative=0.0, absolute=0.0))
    broken = tmp_path / "broken.mar"
    with zipfile.ZipFile(broken, "w") as packed:
        packed.writestr("definition.json", json.dumps({"name": "broken"}))
    wanted = r"(?s)broken\.mar cannot be run for its expected answers: .*MANIFEST"
    with pytest.raises(LoadTestError, match=wanted):
        module.compute(broken, "eager fp32", TEXTS[:1])


EMBEDDER = """
from handlers.text_classifier import TextClassifier

class Embedder(TextClassifier):
    def encode(self, output, sample):
        return {"embedding": [float(one) for one in output.tolist() * 4], "tokens": len(sample.ids)}
"""


def test_a_model_without_labels_is_validated_by_its_own_archive(tiny_text_archive, tmp_path):
    """A handler of one's own that answers embeddings: right, of another text, and changed by little."""
    archive = tmp_path / "tiny_text.mar"
    with zipfile.ZipFile(tiny_text_archive) as old, zipfile.ZipFile(archive, "w") as new:
        for name in old.namelist():
            body = old.read(name)
            if name == "MAR-INF/MANIFEST.json":
                manifest = json.loads(body)
                body = json.dumps({**manifest, "model": {**manifest["model"], "handler": "embedder.py"}})
            new.writestr(name, body)
        new.writestr("embedder.py", EMBEDDER)
    texts = [make_text(name, text, model="tiny_text") for name, text in (("a", "one two"), ("b", "a room"))]
    expected = find(make_kit({"tiny_text": archive}, "fp32"), texts, tmp_path / "cache")
    (first, _), (second, _) = expected.answers
    assert len(first["embedding"]) == 12
    near = {**first, "embedding": [0.999 * one for one in first["embedding"]]}
    other = {**first, "embedding": second["embedding"]}
    found = check(expected, (0, first), (1, second), (0, near), (0, other), (1, first))
    assert (found.checked, found.wrong, found.labels_compared) == (5, 2, 0)
    assert (found.distinguishable_pairs, found.largest_difference) == (1.0, None)
