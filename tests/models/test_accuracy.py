"""The accuracy gate's data, and what becomes of its outcomes."""

from __future__ import annotations

import dataclasses

import pytest

from handlers.backends import catalogue
from models import build, fresh
from models.build import build_archive, read_built
from models.data import Dataset, make_calibration, make_held_out, read_dataset, split_dataset
from models.errors import BuildError
from models.synthetic import encode_member
from tests.conftest import RANDOM, TINY_IMAGE, with_int8, write_definition
from tests.models.gate.test_verdict import GOOD

HELD_OUT = Dataset(source="mine", bodies=(b"a", b"b", b"c", b"d"), labels=("cat", "dog", "cat", "dog"))


def test_calibration_and_held_out_inputs_are_never_the_same():
    for kind in ("image", "text"):
        assert not set(make_calibration(kind).bodies) & set(make_held_out(kind).bodies)
    own, validated = split_dataset(HELD_OUT)
    assert (own.bodies, validated.bodies) == ((b"a", b"c"), (b"b", b"d"))


def test_folders_of_images_name_their_classes(tmp_path):
    for number in range(8):
        folder = tmp_path / ("cat" if number % 2 else "dog")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(encode_member(number, 0))
    dataset = read_dataset("image", tmp_path)
    assert dataset.labels == ("cat",) * 4 + ("dog",) * 4
    assert len(dataset.bodies) == 8


def test_text_files_hold_labels_or_not_whatever_editor_wrote_them(tmp_path):
    (tmp_path / "plain.txt").write_text("\n".join(f"text {n}" for n in range(9)))
    lines = "\r\n".join(f"good\ttext {n}\u2028on" for n in range(9))
    (tmp_path / "windows.tsv").write_bytes(f"\ufeff{lines}\r\n".encode())
    assert read_dataset("text", tmp_path / "plain.txt").labels is None
    labelled = read_dataset("text", tmp_path / "windows.tsv")
    assert labelled.labels == ("good",) * 9
    assert labelled.bodies[8] == "text 8\u2028on".encode()


def test_too_few_inputs_and_some_labels_are_rejected(tmp_path):
    (tmp_path / "mixed.tsv").write_text("\n".join(["good\ttext"] * 9 + ["no label"]))
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    with pytest.raises(BuildError, match="at least 8"):
        read_dataset("text", tmp_path / "few.txt")
    with pytest.raises(BuildError, match="'no label'"):
        read_dataset("text", tmp_path / "mixed.tsv")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for name in ("cat/a.jpg", "b.jpg"):
        (tmp_path / "photos" / name).write_bytes(encode_member(0, 0))
    with pytest.raises(BuildError, match=r"b\.jpg"):
        read_dataset("image", tmp_path / "photos")


def good(**changes):
    return {"figures": {**dataclasses.asdict(GOOD), **changes}, "failure": None, "tried": []}


@pytest.fixture
def build_int8(tmp_path, monkeypatch):
    """Builds with these outcomes of the gate; says whether anything was built, and what is packed."""
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))

    def run(**outcomes):
        monkeypatch.setattr(
            build, "run_module", lambda *_, **__: {f"ipex {name}": one for name, one in outcomes.items()}
        )
        built = build_archive(definition, RANDOM, store=tmp_path, precisions=[*outcomes])
        return built, read_built(tmp_path / "tiny_image.mar").definition.variants

    return run


def test_a_precision_that_cannot_be_built_here_costs_no_other_and_is_tried_again(build_int8, monkeypatch):
    failed = {"figures": None, "failure": "RuntimeError: no INT8 here", "tried": []}
    _, packed = build_int8(bf16=good(), int8=failed)
    assert packed["ipex int8"].not_built == "RuntimeError: no INT8 here"
    assert {name for name, one in packed.items() if one.accuracy and not one.lost} == {"ipex bf16"}
    assert not build_int8(bf16=good(), int8=failed)[0]
    monkeypatch.setattr(fresh, "read_means", lambda: ["amx_int8", "avx2"])
    built, packed = build_int8(bf16=good(), int8=good())
    assert built
    assert not any(one.lost for one in packed.values())


def test_int8_of_a_cpu_with_wider_sums_is_calibrated_again(build_int8, monkeypatch):
    monkeypatch.setattr(catalogue, "has_wide_sums", lambda: True)
    build_int8(int8=good(wide_sums=True))
    assert not build_int8(int8=good(wide_sums=True))[0]
    monkeypatch.setattr(catalogue, "has_wide_sums", lambda: False)
    assert build_int8(int8=good(wide_sums=False))[0]
    assert not build_int8(int8=good(wide_sums=False))[0]


def test_int8_rejected_with_seven_bits_is_tried_again_with_eight(build_int8, monkeypatch):
    monkeypatch.setattr(fresh, "has_wide_sums", lambda: False)
    seven = good(wide_sums=False, agreement_decided=0.1)
    assert build_int8(int8=seven)[1]["ipex int8"].rejected
    assert not build_int8(int8=seven)[0]
    monkeypatch.setattr(fresh, "has_wide_sums", lambda: True)
    assert build_int8(int8=good(wide_sums=True))[0]
    assert not build_int8(int8=good(wide_sums=True))[0]
