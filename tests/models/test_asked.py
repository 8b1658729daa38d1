"""A build makes what is asked for: one precision, gained by an archive that lacks it, and nothing twice."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from handlers.backends.catalogue import BACKENDS
from models import __main__ as command
from models import build
from models.build import build_archive, read_built
from models.errors import BuildError, InputError
from models.request import DataRequest, parse_precisions
from models.synthetic import write_member
from server.archives import check_packed, read_archive
from tests.conftest import FP32_ONLY, RANDOM, TINY_IMAGE, TINY_TEXT, with_int8, write_definition

FIGURES = {"agreement": 1.0, "samples": 80, "source": "synthetic", "calibration": None}
FIGURES |= {"largest_probability_difference": 0.0, "least_cosine": 1.0}
FIGURES |= {"decided": 80, "agreement_decided": 1.0}


@pytest.fixture
def definition(tmp_path):
    return write_definition(tmp_path / "models", with_int8(TINY_IMAGE))


@pytest.fixture
def validated(monkeypatch):
    """The precisions of each call of the gate, by a stand-in that writes a recipe and passes all."""
    calls: list[list[str]] = []

    def run(_, staging, arguments, **__):
        job = json.loads(arguments)
        calls.append(job["precisions"])
        if "ipex int8" in job["precisions"]:
            (Path(staging) / "int8.json").write_text(f"recipe {len(calls)}")
        outcome = {"figures": FIGURES, "failure": None, "tried": []}
        return dict.fromkeys(job["precisions"], outcome)

    monkeypatch.setattr(build, "run_module", run)
    return calls


@pytest.fixture
def prepared(monkeypatch):
    """How often weights were prepared."""
    calls: list[str] = []
    find = build.find_task
    monkeypatch.setattr(build, "find_task", lambda one: calls.append(one.handler) or find(one))
    return calls


@pytest.fixture
def make(tmp_path, definition):
    def build_with(precision, **changes):
        return build_archive(definition, RANDOM, store=tmp_path, precisions=precision.split(), **changes)

    return build_with


def read(tmp_path):
    return read_built(tmp_path / "tiny_image.mar").definition.variants


def read_data(tmp_path):
    return {name: variant.data for name, variant in read(tmp_path).items()}


def read_members(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def make_texts(file, first):
    file.write_text("\n".join(write_member(number % 2, first + number) for number in range(16)))
    return file


def test_fp32_judges_nothing(tmp_path, make, validated):
    assert make("fp32")
    assert validated == []
    assert read(tmp_path) == {}
    assert "int8.json" not in read_members(tmp_path / "tiny_image.mar")


@pytest.mark.parametrize(
    ("precision", "gate"),
    [("bf16", ["ipex bf16"]), ("int8", ["ipex int8"]), ("fp32 bf16 int8", ["ipex bf16", "ipex int8"])],
)
def test_only_what_is_asked_for_is_validated(tmp_path, make, validated, precision, gate):
    assert make(precision)
    assert validated == [gate]
    assert read_data(tmp_path) == dict.fromkeys(gate, "synthetic")
    assert not make(precision)
    assert not make("fp32")


def test_backends_are_validated_each_and_stand_side_by_side(tmp_path, make, validated):
    assert make("bf16 int8", backends=("ipex", "eager"))
    assert not make("bf16 int8", backends=("eager",))
    assert validated == [["ipex bf16", "ipex int8", "eager bf16"]]
    assert make("int8", backends=("ipex", "openvino"))
    assert validated[1:] == [["openvino fp32", "openvino int8"]]


def test_an_archive_gains_a_precision_and_keeps_its_weights(tmp_path, make, validated, prepared):
    make("fp32")
    archive = tmp_path / "tiny_image.mar"
    before = read_members(archive)
    assert make("int8")
    assert (validated, prepared) == ([["ipex int8"]], ["image_classifier"])
    after = read_members(archive)
    assert after.pop("int8.json") == b"recipe 1"
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"definition.json", "SHA256SUMS"}
    assert after.keys() == before.keys()
    check_packed([read_archive(archive)])
    assert not make("int8")


def test_what_an_archive_has_is_kept(tmp_path, make, validated):
    make("int8")
    assert not make("fp32")
    assert make("bf16")
    assert validated == [["ipex int8"], ["ipex bf16"]]
    assert list(read(tmp_path)) == ["ipex bf16", "ipex int8"]
    assert read_members(tmp_path / "tiny_image.mar")["int8.json"] == b"recipe 1"


@pytest.mark.parametrize("raw", [TINY_IMAGE, TINY_TEXT], ids=["image", "text"])
def test_in_which_order_precisions_were_asked_for_does_not_show(tmp_path, raw):
    """With the gate itself: what was gained is what would have been built at once."""
    definition = write_definition(tmp_path / "models", with_int8(raw))
    for precision in ("fp32", "int8", "bf16"):
        assert build_archive(definition, RANDOM, store=tmp_path / "gained", precisions=[precision])
    build_archive(definition, RANDOM, store=tmp_path / "at-once")
    gained, at_once = (tmp_path / folder / f"{raw['name']}.mar" for folder in ("gained", "at-once"))
    assert gained.read_bytes() == at_once.read_bytes()


def test_a_stale_archive_is_built_again_with_what_it_had(tmp_path, make, validated, prepared):
    make("int8")
    changed = with_int8({**TINY_IMAGE, "batch_sizes": [1, 2]})
    again = write_definition(tmp_path / "models", changed)
    assert build_archive(again, RANDOM, store=tmp_path, precisions=["bf16"])
    assert prepared == ["image_classifier", "image_classifier"]
    assert validated == [["ipex int8"], ["ipex bf16", "ipex int8"]]


def test_a_damaged_archive_is_built_again_with_what_it_had(tmp_path, make, validated, prepared):
    make("int8")
    archive = tmp_path / "tiny_image.mar"
    whole = archive.read_bytes()
    archive.write_bytes(whole.replace(b"recipe 1", b"recipe 7"))
    assert make("fp32")
    assert validated == [["ipex int8"], ["ipex int8"]]
    assert prepared == ["image_classifier", "image_classifier"]


def test_other_data_judge_again_only_what_is_asked_for(tmp_path, make, validated, prepared):
    make("bf16 int8")
    data = DataRequest(calibration=make_texts(tmp_path / "own.txt", 0))
    assert make("int8", data=data)
    assert (validated, prepared) == ([["ipex bf16", "ipex int8"], ["ipex int8"]], ["image_classifier"])
    assert read_members(tmp_path / "tiny_image.mar")["int8.json"] == b"recipe 2"
    assert not make("int8", data=data)
    make_texts(tmp_path / "own.txt", 1)
    assert make("int8", data=data)
    assert not make("fp32")
    assert make("int8")
    assert validated[2:] == [["ipex int8"], ["ipex int8"]]
    assert read_data(tmp_path) == {"ipex bf16": "synthetic", "ipex int8": "synthetic"}


def test_an_old_recipe_does_not_outlive_a_calibration_that_fails(tmp_path, make, validated, monkeypatch):
    make("int8")
    failed = {"ipex int8": {"figures": None, "failure": "no INT8 here", "tried": []}}
    monkeypatch.setattr(build, "run_module", lambda *_, **__: failed)
    assert make("int8", data=DataRequest(calibration=make_texts(tmp_path / "own.txt", 0)))
    assert "int8.json" not in read_members(tmp_path / "tiny_image.mar")
    assert {name: (one.accuracy, one.not_built) for name, one in read(tmp_path).items()} == {
        "ipex int8": (None, "no INT8 here")
    }


def test_a_gate_that_fails_leaves_the_archive_as_it_was(tmp_path, make, monkeypatch):
    def fail(*_, **__):
        raise BuildError("planted")

    make("fp32")
    before = (tmp_path / "tiny_image.mar").read_bytes()
    monkeypatch.setattr(build, "run_module", fail)
    with pytest.raises(BuildError, match="planted"):
        make("int8")
    assert (tmp_path / "tiny_image.mar").read_bytes() == before


def test_a_precision_that_the_model_has_not_is_named(tmp_path):
    definition = write_definition(tmp_path / "models", {**TINY_IMAGE, "precisions": FP32_ONLY})
    with pytest.raises(BuildError, match=r"PRECISION must be of fp32: got int8 \(field precisions"):
        build_archive(definition, RANDOM, store=tmp_path, precisions=["int8"])


def test_the_command_hands_on_what_is_asked_for(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "build_archive", lambda *_, precisions, **__: asked.append([*precisions]))
    several = ["--precisions", "fp32 int8"]
    for given in ([], ["PRECISION="], ["PRECISION=int8"], several, ["ARGS=--precisions fp32,int8"]):
        assert command.main(["build", "MODELS=bert", f"MODEL_STORE={tmp_path}", *given]) == 0
    assert asked == [["fp32"], ["fp32"], ["int8"], ["fp32", "int8"], ["fp32", "int8"]]


def test_it_can_build_for_every_backend_that_is_installed(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "build_archive", lambda *_, backends, **__: asked.append(backends))
    monkeypatch.setattr(command, "find_missing", lambda: frozenset(BACKENDS) - {"ipex", "eager"})
    where = ["build", "MODELS=bert", f"MODEL_STORE={tmp_path}"]
    assert command.main([*where, "BACKEND=eager"]) == command.main([*where, "--all-backends"]) == 0
    assert asked == [["eager"], ["ipex", "eager"]]


def test_a_precision_that_is_none_is_rejected():
    with pytest.raises(InputError, match=r"--precisions must be of .*int9"):
        parse_precisions("fp32 int9")
