"""The accuracy gate's process and its data: real calibration, good and planted bad."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from handlers.shared.errors import LoadError
from handlers.shared.options import LoadOptions
from handlers.shared.state import LoadState
from handlers.shared.steps import build_graph
from models import accuracy, build, fresh
from models.build import build_archive, read_archive_definition
from models.classifiers import load_classifier
from models.data import MOST_LABELLED, Dataset, make_calibration, make_held_out, read_dataset, split_dataset
from models.errors import BuildError
from models.request import DataRequest
from models.synthetic import draw_member, encode_member, write_member
from tests.conftest import PRECISIONS, RANDOM, TINY_IMAGE, TINY_TEXT, write_definition
from tests.models.gate.test_verdict import GOOD

INT8_RECIPE = {"self_check_relative_error": 0.5, "canary_relative": 0.5, "canary_absolute": 0.2}
HELD_OUT = Dataset(source="mine", bodies=(b"a", b"b", b"c", b"d"), labels=("cat", "dog", "cat", "dog"))


def with_int8(raw: dict, *, agreement: float) -> dict:
    return {
        **raw,
        "accuracy_gate": {"agreement": agreement},
        "precisions": {**PRECISIONS, "int8": INT8_RECIPE},
        "worker_memory_mib": {"fp32": 500, "bf16": 500, "int8": 500},
    }


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


@pytest.mark.parametrize("raw", [TINY_IMAGE, TINY_TEXT], ids=["image", "text"])
def test_int8_is_calibrated_judged_and_packed(tmp_path, raw):
    definition = write_definition(tmp_path / "models", with_int8(raw, agreement=0.5))
    build_archive(definition, RANDOM, store=tmp_path)
    archive = tmp_path / f"{raw['name']}.mar"
    packed = read_archive_definition(archive)
    assert packed["refused"] == {}
    assert set(packed["accuracy"]) == {"bf16", "int8"}
    assert packed["accuracy"]["int8"]["calibration"] == "synthetic"
    assert packed["accuracy"]["int8"]["agreement"] >= 0.5
    with zipfile.ZipFile(archive) as file:
        assert json.loads(file.read("int8.json"))


def draw_pictures(folder: Path, numbers: range) -> Path:
    folder.mkdir()
    for number in numbers:
        (folder / f"{number}.jpg").write_bytes(encode_member(number % 20, 200 + number))
    return folder


def test_a_calibration_that_ruins_every_observer_is_rescued_by_operators_in_bf16(tmp_path, capsys):
    # Black pictures: every scale is chosen for a network that sees nothing.
    folder = tmp_path / "black"
    folder.mkdir()
    for number in range(16):
        Image.new("RGB", (80, 80 + number)).save(folder / f"{number}.png")
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    data = DataRequest(calibration=folder, evaluation=draw_pictures(tmp_path / "pictures", range(40)))
    build_archive(definition, RANDOM, store=tmp_path, data=data)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    tried, figures = packed["tried"]["int8"], packed["accuracy"]["int8"]
    assert packed["refused"] == {}
    assert [one["recipe"] for one in tried[:3]] == ["histogram", "min-max", "percentile"]
    assert [one["reason"] is None for one in tried] == [False] * (len(tried) - 1) + [True]
    assert figures["recipe"] == tried[-1]["recipe"]
    assert figures["agreement_decided"] >= 0.9
    assert figures["calibration"] == "black"
    lines = capsys.readouterr().out.splitlines()
    (passed,) = [line for line in lines if ": passed; " in line]
    assert passed.startswith(f"  tiny_image int8 by {figures['recipe']}: passed; ")
    recipe = load_int8(tmp_path, tmp_path / "tiny_image.mar").facts["recipe"]
    assert recipe["name"] == figures["recipe"]
    assert recipe["bf16_operators"] > 0


def load_int8(folder: Path, archive: Path) -> LoadState:
    """As a worker does, to the last step but the warm-up."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "unpacked")
    options = LoadOptions(precision="int8", ipex=True, threads=None)
    state = LoadState(classifier=load_classifier(folder / "unpacked"), options=options)
    build_graph(state)
    return state


def test_where_no_recipe_passes_the_nearest_is_refused_with_its_figures(tmp_path, capsys):
    # More than all cannot agree: every recipe is tried.
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=1.01))
    data = DataRequest(evaluation=draw_pictures(tmp_path / "pictures", range(24)))
    build_archive(definition, RANDOM, store=tmp_path, data=data)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    tried, figures = packed["tried"]["int8"], packed["accuracy"]["int8"]
    assert len(tried) == 6
    judged = [one for one in tried if one["time_ratio"] is not None]
    assert len(judged) >= 4
    assert all("at least 101.0% is needed" in one["reason"] for one in judged)
    assert all("at most 50% may be" in one["reason"] for one in tried if one not in judged)
    nearest = f"; so {figures['recipe']}, the nearest of {len(judged)} recipes"
    assert packed["refused"]["int8"].endswith(nearest)
    with zipfile.ZipFile(tmp_path / "tiny_image.mar") as file:
        assert json.loads(file.read("int8.json"))["cpu-kit"]["name"] == figures["recipe"]
    lines = capsys.readouterr().out.splitlines()
    by = [line for line in lines if line.startswith("  tiny_image int8 by ")]
    assert len(by) == 6
    assert sum(line.endswith(" times the time of histogram") for line in by[1:]) == len(judged) - 1


def test_labels_that_the_model_does_not_have_are_a_clear_build_error(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    draw_pictures(folder / "holiday", range(8))
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    with pytest.raises(BuildError, match="the labels of photos must be classes of the model"):
        build_archive(definition, RANDOM, store=tmp_path, data=DataRequest(evaluation=folder))


def test_a_broken_input_is_a_clear_build_error(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.jpg").write_bytes(b"no picture")
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    with pytest.raises(BuildError, match=r"the precisions of tiny_image cannot be judged: the body is text"):
        build_archive(definition, RANDOM, store=tmp_path, data=DataRequest(calibration=folder))
    assert not Path(tmp_path / "tiny_image.mar").exists()


def test_more_than_one_thread_calibrates():
    assert accuracy.THREADS > 1


def test_a_precision_that_cannot_be_built_here_does_not_cost_fp32(tmp_path, monkeypatch, capsys):
    # Truncating the gate's answer to what an AVX2-only machine could give: one precision failed.
    outcomes = {
        "bf16": {"figures": dataclasses.asdict(GOOD), "failure": None, "tried": []},
        "int8": {"figures": None, "failure": "RuntimeError: no INT8 here", "tried": []},
    }
    monkeypatch.setattr(build, "_run_gate", lambda *_: outcomes)
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    build_archive(definition, RANDOM, store=tmp_path)
    packed = read_archive_definition(tmp_path / "tiny_image.mar")
    assert packed["refused"] == {}
    assert packed["not_built"]["int8"]["cause"] == "RuntimeError: no INT8 here"
    assert set(packed["accuracy"]) == {"bf16"}
    assert "int8: not built on this machine: RuntimeError: no INT8 here" in capsys.readouterr().out


def test_what_could_not_be_built_is_tried_again_on_another_cpu_only(tmp_path, monkeypatch, capsys):
    outcomes = {"int8": {"figures": None, "failure": "no INT8 here", "tried": []}}
    monkeypatch.setattr(build, "_run_gate", lambda *_: outcomes)
    definition = write_definition(tmp_path / "models", with_int8(TINY_IMAGE, agreement=0.9))
    build_archive(definition, RANDOM, store=tmp_path)
    assert not build_archive(definition, RANDOM, store=tmp_path)
    outcomes["int8"] = {"figures": dataclasses.asdict(GOOD), "failure": None, "tried": []}
    monkeypatch.setattr(fresh, "read_cpu_features", lambda: ["amx_int8", "avx2"])
    assert build_archive(definition, RANDOM, store=tmp_path)
    assert "adding int8 to the archive (it could not be built on another CPU)" in capsys.readouterr().out
    assert read_archive_definition(tmp_path / "tiny_image.mar")["not_built"] == {}


def test_a_failing_precision_is_an_outcome_not_the_end(tiny_image, monkeypatch):
    load = accuracy._load

    def broken(staging, precision, **options):
        if precision == "bf16":
            raise LoadError("planted", cure="none")
        return load(staging, precision, **options)

    monkeypatch.setattr(accuracy, "_load", broken)
    monkeypatch.setattr(accuracy, "THREADS", torch.get_num_threads())
    job = {"kind": "image", "precisions": ["bf16"], "calibration": "", "eval": ""}
    assert accuracy.measure(tiny_image, job) == {"bf16": accuracy.Outcome(failure="planted")}
