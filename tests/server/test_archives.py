"""Archives describe themselves, and a canary's answer is judged by the rule."""

from __future__ import annotations

import dataclasses
import zipfile
from contextlib import nullcontext
from importlib.metadata import version

import pytest

from handlers.backends import catalogue
from server.archives import (
    check_answer,
    check_chosen,
    check_precisions,
    read_archive,
    read_archives,
)
from server.errors import ServerError
from tests.server.fakes import make_archive, with_model


def test_weights_that_nobody_chose_are_refused_where_others_are_served(tmp_path):
    chosen = read_archive(make_archive(tmp_path / "a.mar", name="chosen", source="random"))
    fallen = read_archive(make_archive(tmp_path / "b.mar", name="fallen", source="auto"))
    check_chosen([chosen])
    with pytest.raises(ServerError, match=r"^fallen: "):
        check_chosen([chosen, fallen])


@pytest.mark.parametrize(
    ("judged", "described", "cause"),
    [
        ("ipex bf16", {}, "fp32, ipex bf16"),
        ("ipex int8", {"rejected": "90.0%"}, "90.0%"),
        ("ipex int8", {"not_built": "no AVX-512", "means": ["avx2"]}, "no AVX-512"),
    ],
)
def test_a_precision_that_an_archive_does_not_hold_is_refused(plan, tmp_path, judged, described, cause):
    variants = {judged: {"data": "synthetic", **described}}
    archives = {"bert": read_archive(make_archive(tmp_path / "bert.mar", name="bert", variants=variants))}
    with pytest.raises(ServerError, match=f"{cause}.*make models MODELS=bert"):
        check_precisions(with_precision(plan, "int8"), archives)
    check_precisions(with_precision(plan, "fp32"), archives)


def test_what_another_torch_built_is_not_served(plan, tmp_path):
    """Its answers were judged with another torch; how torch itself was built does not matter."""
    here = version("torch").partition("+")[0]
    for torch, served in (
        (f"{here}+cpu", nullcontext()),
        ("2.14.9", pytest.raises(ServerError, match=r"2\.14\.9")),
    ):
        file = make_archive(tmp_path / "bert.mar", name="bert", built_with={"torch": torch})
        with served:
            check_precisions(with_precision(plan, "fp32"), {"bert": read_archive(file)})


def test_int8_that_would_saturate_here_is_refused_before_a_start(plan, tmp_path, monkeypatch):
    variants = {"ipex int8": {"data": "synthetic", "accuracy": {"wide_sums": True}}}
    archives = {"bert": read_archive(make_archive(tmp_path / "bert.mar", name="bert", variants=variants))}
    monkeypatch.setattr(catalogue, "has_wide_sums", lambda: True)
    check_precisions(with_precision(plan, "int8"), archives)
    monkeypatch.setattr(catalogue, "has_wide_sums", lambda: False)
    with pytest.raises(ServerError, match="this one adds them in 16; calibrate it here: make models"):
        check_precisions(with_precision(plan, "int8"), archives)


def with_precision(plan, precision, backend="ipex"):
    chosen = with_model(plan, "bert", backend=backend, precision=precision)
    return dataclasses.replace(chosen, models={"bert": chosen.models["bert"]})


@pytest.mark.parametrize("member", ["definition.json", "canary.txt", "SHA256SUMS"])
def test_an_archive_without_a_member_is_named(tmp_path, member):
    make_archive(tmp_path / "whole.mar")
    with (
        zipfile.ZipFile(tmp_path / "whole.mar") as whole,
        zipfile.ZipFile(tmp_path / "part.mar", "w") as part,
    ):
        for name in whole.namelist():
            if name != member:
                part.writestr(name, whole.read(name))
    with pytest.raises(
        ServerError, match=rf"part.mar: not an archive of this kit: .*{member}.*build it again"
    ):
        read_archive(tmp_path / "part.mar")


def test_missing_archives_are_all_named_with_the_command(plan, tmp_path):
    make_archive(tmp_path / "bert.mar", name="bert")
    with pytest.raises(ServerError, match=r'resnet50\.mar; build with: make models MODELS="bert resnet50"'):
        read_archives(plan, tmp_path)


BOXES = {"boxes": [{"label": "cat", "score": 0.91}]}


@pytest.mark.parametrize(
    ("answer", "expected", "wrong"),
    [
        ({"label": "good", "probabilities": {"good": 0.7584, "bad": 0.2416}}, None, None),
        ({"label": "good", "probabilities": {"good": 0.7586}}, None, "expected 'good' with 0.7500 ± 0.0085"),
        ({"label": "bad", "probabilities": {"bad": 0.75}}, None, "expected 'good': got 'bad'"),
        ({"code": 503, "message": "no"}, None, "no answer of this model"),
        ({"boxes": [{"label": "cat", "score": 0.905}]}, BOXES, None),
        ({"boxes": [{"label": "cat", "score": 0.8}]}, BOXES, "boxes[0].score: expected 0.91 ± 0.01: got 0.8"),
        ({"boxes": []}, BOXES, "boxes: expected 1 items: got 0"),
        ({"code": 503, "message": "no"}, BOXES, "expected the keys boxes: got code, message"),
    ],
)  # fmt: skip
def test_a_canary_answer_is_right_within_the_tolerance_of_its_precision(archive, answer, expected, wrong):
    """tests/handlers/test_answers.py has the rule."""
    definition = archive.definition
    if expected:
        example = definition.example.model_copy(update={"expected": expected})
        definition = definition.model_copy(update={"example": example})
    found = check_answer(definition, "fp32", answer)
    assert found is None if wrong is None else found and found.startswith(wrong)
    loose = definition.precisions["fp32"].model_copy(update={"answer_absolute": 0.2, "answer_relative": 0.0})
    bf16 = definition.model_copy(update={"precisions": {"bf16": loose}})
    assert (check_answer(bf16, "bf16", answer) is None) is (wrong is None or "±" in wrong)
