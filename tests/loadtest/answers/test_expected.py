"""Expected answers come from the archive, once, and from a server itself only where no handler of ours is."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.answers import expected as module
from loadtest.answers.check import read_probabilities
from loadtest.answers.expected import SELF_TOLERANCE, compute, find_expected
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload, make_text
from loadtest.systems.system import System
from server.archives import read_archive
from tests.loadtest.fake_server import Behaviour, answer_to, serving

TEXTS = [
    make_text(f"t{number}", text, model="tiny_text") for number, text in enumerate(("one", "two", "one"))
]


def say_nothing(_line: str) -> None:
    pass


def answer(payload):
    return answer_to(payload.body)


@pytest.fixture
def computed(monkeypatch):
    """What was computed: (archive, precision, names of payloads)."""
    log = []

    def fake(archive, precision, payloads):
        log.append((archive.stem, precision, [one.name for one in payloads]))
        return [answer(one) for one in payloads]

    monkeypatch.setattr(module, "compute", fake)
    return log


def make_kit(archives, precision="bf16"):
    chosen = {"engine": SimpleNamespace(value="ipex"), "precision": SimpleNamespace(value=precision)}
    models = {name: SimpleNamespace(**chosen) for name in archives}
    return System(name="kit", models=tuple(archives), plan=SimpleNamespace(models=models), archives=archives)


def test_equal_payloads_are_computed_once_and_all_is_kept(computed, tiny_text_archive, tmp_path):
    kit = make_kit({"tiny_text": tiny_text_archive})
    found = [find_expected(kit, TEXTS, tmp_path, say_nothing) for _ in range(2)]
    assert found[0] == found[1]
    assert [(precision, len(names)) for _, precision, names in computed] == [
        ("eager fp32", 2),
        ("ipex bf16", 2),
    ]
    assert found[0].answers == found[0].fp32 == tuple(answer(one) for one in TEXTS)
    assert (
        found[0].tolerances[0].relative
        == read_archive(tiny_text_archive).canary.tolerance["bf16"]["relative"]
    )
    assert found[0].proof
    assert found[0].pairs_told_apart == 1.0
    assert "the archive's own handler at bf16" in found[0].source


def test_other_payloads_are_computed_anew(computed, tiny_text_archive, tmp_path):
    kit = make_kit({"tiny_text": tiny_text_archive}, "fp32")
    for texts in (TEXTS[:1], TEXTS[1:2]):
        find_expected(kit, texts, tmp_path, say_nothing)
    assert [names for _, _, names in computed] == [["t0"], ["t1"]]


def test_payloads_of_several_models_come_back_in_order(computed, tiny_text_archive, tmp_path):
    other = Path(shutil.copy(tiny_text_archive, tmp_path / "tiny_image.mar"))
    kit = make_kit({"tiny_text": tiny_text_archive, "tiny_image": other})
    # The same bytes for another model are another payload.
    photo = Payload(name="photo", body=TEXTS[0].body, content_type="image/jpeg", model="tiny_image")
    mixture = [TEXTS[0], photo, TEXTS[1]]
    found = find_expected(kit, mixture, tmp_path, say_nothing)
    assert found.answers == tuple(answer(one) for one in mixture)
    asked = {(archive, precision): names for archive, precision, names in computed}
    assert asked["tiny_text", "ipex bf16"] == ["t0", "t1"]
    assert asked["tiny_image", "ipex bf16"] == ["photo"]


def test_a_baseline_is_held_against_its_own_answers_and_the_labels_of_fp32(
    computed, tiny_text_archive, tmp_path
):
    with serving() as server:
        stock = System(
            name="stock", models=("tiny_text",), url=server.url, archives={"tiny_text": tiny_text_archive}
        )
        found = find_expected(stock, TEXTS, tmp_path, say_nothing)
        assert server.seen.requests == 2
    assert found.answers == found.fp32 == tuple(answer(one) for one in TEXTS)
    assert [precision for _, precision, _ in computed] == ["eager fp32"]
    assert (found.proof, set(found.tolerances)) == (False, {SELF_TOLERANCE})
    assert "no proof" in found.source
    assert found.source.endswith("labels against eager FP32")


def test_any_server_is_held_against_its_own_answers_alone(tmp_path):
    with serving() as server:
        found = find_expected(System(name="url", models=(), url=server.url), TEXTS, tmp_path, say_nothing)
    assert (found.answers, found.fp32) == (tuple(answer(one) for one in TEXTS), None)
    assert not found.proof
    assert "labels" not in found.source


def test_a_server_that_refuses_a_payload_is_said(tmp_path):
    refused = "url must answer each payload asked calmly: .* answered 503"
    with serving(Behaviour(error_each=1)) as server, pytest.raises(LoadTestError, match=refused):
        find_expected(System(name="url", models=(), url=server.url), TEXTS, tmp_path, say_nothing)


def test_an_answer_without_labels_is_never_what_is_expected(
    computed, tiny_text_archive, monkeypatch, tmp_path
):
    kit = make_kit({"tiny_text": tiny_text_archive})
    monkeypatch.setattr(module, "compute", lambda *_: [{"code": 415, "error": "no text"}])
    wanted = r"tiny_text\.mar must answer t0 by labels with probabilities: got \{'code': 415"
    for _ in range(2):  # nor is it kept
        with pytest.raises(LoadTestError, match=wanted):
            find_expected(kit, TEXTS[:1], tmp_path, say_nothing)


def test_the_archives_own_handler_answers_in_a_process_of_its_own(tiny_text_archive):
    canary = read_archive(tiny_text_archive).canary
    payload = Payload(name="c", body=canary.body, content_type=canary.content_type, model="tiny_text")
    (found,) = compute(tiny_text_archive, "eager fp32", [payload])
    assert read_probabilities(found) == pytest.approx(dict(canary.expected), abs=1e-3)


def test_an_archive_that_cannot_be_run_is_said(tiny_text_archive, tmp_path):
    broken = tmp_path / "broken.mar"
    with zipfile.ZipFile(broken, "w") as packed:
        packed.writestr("definition.json", json.dumps({"name": "broken"}))
    with pytest.raises(
        LoadTestError, match=r"(?s)broken\.mar cannot be run for its expected answers: .*MANIFEST"
    ):
        compute(broken, "eager fp32", TEXTS[:1])
