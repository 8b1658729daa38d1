"""Archives describe themselves; one that is not what was built and planned with does not start."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from importlib.metadata import version

import pytest

from handlers.backends import catalogue
from handlers.sums import find_changed_files, find_damage, parse_sums
from server.archives import (
    check_answer,
    check_chosen,
    check_packed,
    check_precisions,
    read_archive,
    read_archives,
    read_archives_left,
)
from server.errors import ServerError
from tests.plans import make_model
from tests.server.fakes import make_archive, with_model

RELEASE = version("torch").partition("+")[0]


def test_weights_that_nobody_chose_are_rejected_where_others_are_served(tmp_path):
    chosen = read_archive(make_archive(tmp_path / "a.mar", name="chosen", source="random"))
    fallen = read_archive(make_archive(tmp_path / "b.mar", name="fallen", source="auto"))
    check_chosen([chosen])
    with pytest.raises(ServerError, match=r"^fallen: "):
        check_chosen([chosen, fallen])


@pytest.mark.parametrize(
    ("described", "precision", "cause"),
    [
        ({"variants": {"ipex bf16": {"data": "d"}}}, "int8", "no build was asked for it"),
        ({"variants": {"ipex bf16": {"data": "d"}}}, "bf16", None),
        ({"variants": {"ipex int8": {"data": "d", "rejected": "90.0%"}}}, "int8", "90.0%"),
        ({"variants": {"ipex int8": {"data": "d", "rejected": "90.0%"}}}, "fp32", None),
        ({"variants": {"ipex int8": {"data": "d", "not_built": "no AVX-512"}}}, "int8", "no AVX-512"),
        ({"variants": {"ipex int8": {"data": "d", "accuracy": {"wide_sums": True}}}}, "int8", "in 16"),
        ({"variants": {"ipex int8": {"data": "d", "accuracy": {"wide_sums": False}}}}, "int8", None),
        # Its answers were validated with another torch; how torch itself was built does not matter.
        ({"built_with": {"torch": "2.14.9"}}, "fp32", r"2\.14\.9"),
        ({"built_with": {"torch": f"{RELEASE}+other"}}, "fp32", None),
    ],
)  # fmt: skip
def test_an_archive_that_cannot_be_served_as_planned_is_rejected(
    plan, tmp_path, monkeypatch, described, precision, cause
):
    monkeypatch.setattr(catalogue, "has_wide_sums", lambda: False)
    archives = {
        name: read_archive(make_archive(tmp_path / f"{name}.mar", name=name, **described))
        for name in ("bert", "resnet50")
    }
    plan = with_model(with_model(plan, "bert", precision=precision), "resnet50", precision=precision)
    if cause is None:
        check_precisions(plan, archives)
        return
    with pytest.raises(ServerError, match=f"{cause}.*make models MODELS=bert .*{cause}.*MODELS=resnet50"):
        check_precisions(plan, archives)


def test_missing_archives_are_all_named_with_the_command(plan, tmp_path):
    plan = replace(plan, model_store=str(tmp_path))
    make_archive(tmp_path / "bert.mar", name="bert")
    with pytest.raises(ServerError, match=r'resnet50\.mar; build with: make models MODELS="bert resnet50"'):
        read_archives(plan)
    assert [*read_archives_left(plan)] == ["bert"]


def test_an_archive_that_others_made_is_not_read_but_must_be_there(plan, tmp_path):
    old = make_model("old", kit=False, backend="", precision="", archives={"1.0": str(tmp_path / "old.mar")})
    plan = replace(plan, instances={"a1": replace(plan.instances["a1"], models={"old": old})})
    with pytest.raises(ServerError, match=r"old\.mar.*MODELS"):
        read_archives(plan)
    (tmp_path / "old.mar").write_bytes(b"no zip file")
    assert read_archives(plan) == read_archives_left(plan) == {}


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
    ],
)  # fmt: skip
def test_an_answer_is_right_within_the_tolerance_of_its_precision(archive, answer, expected, wrong):
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


@pytest.fixture
def file(tmp_path):
    return make_archive(tmp_path / "echo.mar")


def rewrite(file, without="", **changed):
    """The same archive with other members."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != without}
    with zipfile.ZipFile(file, "w") as archive:
        for name, body in {**members, **changed}.items():
            archive.writestr(name, body)


@pytest.mark.parametrize("member", ["definition.json", "example.txt", "SHA256SUMS"])
def test_an_archive_without_a_member_is_named(file, member):
    rewrite(file, without=member)
    with pytest.raises(ServerError, match=rf"{file}: not an archive of this kit: .*{member}.*build it again"):
        read_archive(file)


def test_a_changed_archive_is_rejected_with_the_file_and_the_fix(file):
    rewrite(file, **{"example.txt": b"hallo"})
    with pytest.raises(ServerError, match=f"{file}: .*example.txt has .*make models MODELS=echo"):
        check_packed([read_archive(file)])


def test_what_was_put_in_is_packed_twice_or_flipped_is_damage(file):
    content = file.read_bytes()
    rewrite(file, **{"handler.py": b"import os"})
    assert find_damage(file) == "handler.py was not built in"
    file.write_bytes(content)
    # TorchServe unpacks one of them, Python's reader another.
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("example.txt", "hello")
    assert find_damage(file) == "example.txt is damaged"
    file.write_bytes(content.replace(b'"expected"', b'"ex\0ected"', 1))
    assert find_damage(file) == "definition.json is damaged"


def test_sums_that_were_rewritten_make_another_archive(file):
    before = read_archive(file)
    sums = "".join(f"{digest}  {name}\n" for name, digest in parse_sums(before.sums.decode()).items())
    rewrite(file, SHA256SUMS=f"{sums}{'0' * 64}  more.py\n")
    assert read_archive(file).archive_id != before.archive_id


def test_what_is_unpacked_is_validated_by_the_same_sums(file, tmp_path):
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    assert find_changed_files(read_archive(file).sums, folder) == []
    (folder / "example.txt").unlink()
    (folder / "SHA256SUMS").write_text("")
    (folder / "more").symlink_to(tmp_path)
    changes = find_changed_files(read_archive(file).sums, folder)
    assert [change[:24] for change in changes] == [
        "SHA256SUMS has sha256 e3", "example.txt is missing", "more was not built in"
    ]  # fmt: skip
