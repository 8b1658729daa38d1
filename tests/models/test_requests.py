"""MODELS=, WEIGHTS=, CALIBRATION=, EVAL=: words, paths and one value for each model."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.__main__ import ROOT, main
from models.errors import InputError
from models.request import WeightsRequest, parse_paths, parse_weights

BOTH = ["resnet50", "bert"]


def test_a_word_holds_for_all_models_and_nothing_means_not_given():
    assert parse_weights("random", BOTH) == {name: WeightsRequest(source="random") for name in BOTH}
    assert parse_weights(" ", BOTH) == {name: WeightsRequest(source="") for name in BOTH}
    assert parse_weights("bert=random", BOTH)["resnet50"] == WeightsRequest(source="")


def test_each_model_can_have_its_own(tmp_path):
    parsed = parse_weights(f"bert={tmp_path},resnet50=random", BOTH)
    assert parsed["bert"] == WeightsRequest(source="path", path=Path(tmp_path))
    assert parsed["resnet50"].source == "random"


def test_one_path_fits_one_model(tmp_path):
    assert parse_weights(str(tmp_path), ["bert"])["bert"].path == tmp_path
    with pytest.raises(
        InputError, match=f"a path for 2 models; write WEIGHTS=resnet50={tmp_path} or MODELS=resnet50"
    ):
        parse_weights(str(tmp_path), BOTH)


@pytest.mark.parametrize(
    "text",
    [
        "prtrained",
        "~nobody-of-that-name/x",
        "bert=",
        "bert=random,",
        "random,auto",
        "bert=random,bert=auto",
        "bert=random,resnet50=auto",
        "/x/vgg=1",
        "vgg=random",
    ],
)
def test_wrong_values_are_rejected(text):
    with pytest.raises(InputError, match="WEIGHTS"):
        parse_weights(text, ["bert"])


@pytest.mark.parametrize("name", ["run=3,best", "bert=random"])
def test_what_exists_is_a_path_whatever_its_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    expected = WeightsRequest(source="path", path=tmp_path / name)
    assert parse_weights(name, ["bert"])["bert"] == expected
    assert parse_weights(str(tmp_path / name), ["bert"])["bert"] == expected


@pytest.mark.parametrize(
    "name", ["a,b=c", "a, b", "x,", "the judge's model", "é", "a=b,c", "-x", '$HOME #%\\"']
)
def test_a_path_may_hold_commas_and_whatever_else_a_file_may(tmp_path, name):
    folder = tmp_path / name / "model"
    folder.mkdir(parents=True)
    data = {"bert": folder, "resnet50": tmp_path / name}
    for text in (f"bert={folder},resnet50={tmp_path / name}", f"resnet50={tmp_path / name}, bert={folder}"):
        assert parse_paths("EVAL", text, BOTH) == data
    assert parse_weights(f"bert={folder}", BOTH)["bert"].path == folder
    assert parse_weights(str(folder), ["bert"])["bert"].path == folder


def test_data_are_paths_that_exist():
    assert parse_paths("EVAL", "", BOTH) == {}
    with pytest.raises(InputError, match="CALIBRATION"):
        parse_paths("CALIBRATION", "bert=random", BOTH)


@pytest.mark.parametrize("command", ["check", "build"])
def test_a_wrong_value_is_exit_code_2(command, capsys):
    assert main([command, "--models", "bert", "--weights", str(ROOT / "handlers")]) == 2
    assert "must hold model.safetensors or" in capsys.readouterr().err
