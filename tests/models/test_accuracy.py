"""The accuracy gate's data, and what becomes of its outcomes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from handlers.engines import engine
from handlers.shared.errors import LoadError
from models import accuracy, build, fresh
from models.build import build_archive, read_archive_definition
from models.data import MOST_LABELLED, Dataset, make_calibration, make_held_out, read_dataset, split_dataset
from models.errors import BuildError
from models.synthetic import draw_member, encode_member, write_member
from tests.conftest import RANDOM, TINY_IMAGE, write_definition
from tests.models.gate.test_verdict import GOOD
from tests.models.gates import with_int8

HELD_OUT = Dataset(source="mine", bodies=(b"a", b"b", b"c", b"d"), labels=("cat", "dog", "cat", "dog"))


def test_calibration_and_held_out_inputs_are_never_the_same():
    for kind in ("image", "text"):
        assert not set(make_calibration(kind).bodies) & set(make_held_out(kind).bodies)
    own, judged = split_dataset(HELD_OUT)
    assert (own.bodies, judged.bodies) == ((b"a", b"c"), (b"b", b"d"))


def test_calibration_inputs_differ_from_each_other():
    for kind in ("image", "text"):
        bodies = make_calibration(kind).bodies
        assert len(set(bodies)) == len(bodies)


def test_members_are_decided_by_family_and_number():
    assert draw_member(3, 5).tobytes() == draw_member(3, 5).tobytes()
    assert len({draw_member(family, 5).tobytes() for family in range(4)}) == 4
    assert write_member(0, 7) == write_member(0, 7) != write_member(1, 7)


def test_folders_of_images_name_their_classes(tmp_path):
    for number in range(8):
        folder = tmp_path / ("cat" if number % 2 else "dog")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(encode_member(number, 0))
    dataset = read_dataset("image", tmp_path)
    assert dataset.labels == ("cat",) * 4 + ("dog",) * 4
    assert len(dataset.bodies) == 8


def test_text_files_hold_labels_or_not(tmp_path):
    (tmp_path / "plain.txt").write_text("\n".join(f"text {n}" for n in range(9)))
    (tmp_path / "labelled.tsv").write_text("\n".join(f"good\ttext {n}" for n in range(9)))
    assert read_dataset("text", tmp_path / "plain.txt").labels is None
    labelled = read_dataset("text", tmp_path / "labelled.tsv")
    assert labelled.labels == ("good",) * 9
    assert labelled.bodies[0] == b"text 0"


def test_a_byte_order_mark_and_the_ends_of_lines_of_other_editors_change_no_label(tmp_path):
    lines = "\r\n".join(f"good\ttext {n}\u2028on" for n in range(9))
    (tmp_path / "windows.tsv").write_bytes(f"\ufeff{lines}\r\n".encode())
    dataset = read_dataset("text", tmp_path / "windows.tsv")
    assert dataset.labels == ("good",) * 9
    assert dataset.bodies[8] == "text 8\u2028on".encode()


def test_inputs_of_which_some_have_labels_are_rejected(tmp_path):
    (tmp_path / "mixed.tsv").write_text("\n".join(["good\ttext"] * 9 + ["no label"]))
    with pytest.raises(BuildError, match="'no label'"):
        read_dataset("text", tmp_path / "mixed.tsv")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for name in ("cat/a.jpg", "b.jpg"):
        (tmp_path / "photos" / name).write_bytes(encode_member(0, 0))
    with pytest.raises(BuildError, match=r"b\.jpg"):
        read_dataset("image", tmp_path / "photos")


@pytest.mark.parametrize(("line", "judged"), [("good\ttext {}", 3000), ("text {}", 500)])
def test_labels_are_read_where_they_judge_as_many_as_were_given(tmp_path, line, judged):
    (tmp_path / "many.tsv").write_text("\n".join(line.format(number) for number in range(3000)))
    read = read_dataset("text", tmp_path / "many.tsv", most_labelled=MOST_LABELLED)
    assert len(read.bodies) == judged
    assert len(read_dataset("text", tmp_path / "many.tsv").bodies) == 500


def test_too_few_inputs_are_refused(tmp_path):
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    with pytest.raises(BuildError, match=r"few\.txt must hold at least 8 inputs: got 2"):
        read_dataset("text", tmp_path / "few.txt")


def test_more_than_one_thread_calibrates():
    assert accuracy.THREADS > 1


def test_a_precision_that_cannot_be_built_here_does_not_cost_fp32(tmp_path, monkeypatch, capsys):
    # Truncating the gate's answer to what an AVX2-only machine could give: one precision failed.
    outcomes = {
        "ipex bf16": {"figures": dataclasses.asdict(GOOD), "failure": None, "tried": []},
        "ipex int8": {"figures": None, "failure": "RuntimeError: no INT8 here", "tried": []},
    }
    monkeypatch.setattr(build, "_run_gate", lambda *_: outcomes)
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    build_archive(definition, RANDOM, store=tmp_path)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    assert packed["refused"] == {}
    assert packed["not_built"]["ipex int8"]["cause"] == "RuntimeError: no INT8 here"
    assert set(packed["accuracy"]) == {"ipex bf16"}
    assert "int8: not built on this machine: RuntimeError: no INT8 here" in capsys.readouterr().out


def test_what_could_not_be_built_is_tried_again_with_other_means_only(tmp_path, monkeypatch, capsys):
    outcomes = {"ipex int8": {"figures": None, "failure": "no INT8 here", "tried": []}}
    monkeypatch.setattr(build, "_run_gate", lambda *_: outcomes)
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    build_archive(definition, RANDOM, store=tmp_path)
    assert not build_archive(definition, RANDOM, store=tmp_path)
    outcomes["ipex int8"] = {"figures": dataclasses.asdict(GOOD), "failure": None, "tried": []}
    monkeypatch.setattr(fresh, "read_means", lambda: ["amx_int8", "avx2"])
    assert build_archive(definition, RANDOM, store=tmp_path)
    assert "adding ipex int8 to the archive (it could not be built before;" in capsys.readouterr().out
    assert read_archive_definition(tmp_path / "tiny_image.mar")["not_built"] == {}


def test_int8_of_a_cpu_with_wider_sums_is_calibrated_anew(tmp_path, monkeypatch, capsys):
    figures = {**dataclasses.asdict(GOOD), "wide_sums": True}
    outcomes = {"ipex int8": {"figures": figures, "failure": None, "tried": []}}
    monkeypatch.setattr(build, "_run_gate", lambda *_: outcomes)
    monkeypatch.setattr(engine, "has_wide_sums", lambda: True)
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])
    assert not build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])
    monkeypatch.setattr(engine, "has_wide_sums", lambda: False)
    figures["wide_sums"] = False
    assert build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])
    assert "adds products of INT8 in 32 bits; this one adds them in 16" in capsys.readouterr().out
    assert not build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])


def test_int8_refused_with_seven_bits_is_tried_again_with_eight(tmp_path, monkeypatch, capsys):
    figures = {**dataclasses.asdict(GOOD), "wide_sums": False, "agreement_decided": 0.1}
    outcomes = {"ipex int8": {"figures": figures, "failure": None, "tried": []}}
    monkeypatch.setattr(build, "_run_gate", lambda *_: outcomes)
    monkeypatch.setattr(fresh, "has_wide_sums", lambda: False)
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])
    assert read_archive_definition(tmp_path / "tiny_image.mar")["refused"]
    assert not build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])
    monkeypatch.setattr(fresh, "has_wide_sums", lambda: True)
    figures |= {"wide_sums": True, "agreement_decided": 1.0}
    assert build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])
    assert "it was refused with seven bits" in capsys.readouterr().out
    assert not build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])


def test_a_failing_precision_is_an_outcome_not_the_end(tiny_image, monkeypatch):
    load = accuracy._load

    def broken(staging, engine, precision, **options):
        if precision == "bf16":
            raise LoadError("planted", cure="none")
        return load(staging, engine, precision, **options)

    monkeypatch.setattr(accuracy, "_load", broken)
    monkeypatch.setattr(accuracy, "THREADS", torch.get_num_threads())
    job = {"kind": "image", "precisions": ["eager bf16"], "calibration": "", "eval": ""}
    assert accuracy.measure(tiny_image, job) == {"eager bf16": accuracy.Outcome(failure="planted")}
