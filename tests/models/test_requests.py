"""MODELS=, WEIGHTS=, CALIBRATION=, EVAL=: words, paths and one value for each model."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.settings import read_settings
from models.__main__ import ROOT, main
from models.errors import InputError
from models.request import WeightsRequest, choose_data, choose_weights

BOTH = ["resnet50", "bert"]


def parse_weights(text: str, names: list[str]) -> dict[str, WeightsRequest]:
    """As the command line gives them."""
    return choose_weights(read_settings([f"WEIGHTS={text}", f"MODELS={' '.join(names)}"], ()), names)


def parse_evaluation(text: str) -> dict[str, Path | None]:
    settings = read_settings([f"EVAL={text}"], ())
    return {name: one.evaluation for name, one in choose_data(settings, BOTH, ["int8"]).items()}


def test_a_word_holds_for_all_models_and_nothing_means_not_given():
    assert parse_weights("random", BOTH) == {name: WeightsRequest(source="random") for name in BOTH}
    assert parse_weights("", BOTH) == {name: WeightsRequest(source="") for name in BOTH}
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
    with pytest.raises((InputError, ConfigError), match="WEIGHTS"):
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
        assert parse_evaluation(text) == data
    assert parse_weights(f"bert={folder}", BOTH)["bert"].path == folder
    assert parse_weights(str(folder), ["bert"])["bert"].path == folder


def test_data_are_paths_that_exist():
    assert parse_evaluation("") == {"resnet50": None, "bert": None}
    with pytest.raises(InputError, match="EVAL"):
        parse_evaluation("bert=random")


@pytest.mark.parametrize("precisions", [["fp32"], ["fp32", "int8"]])
def test_data_that_would_validate_nothing_are_rejected(tmp_path, precisions):
    settings = read_settings([f"CALIBRATION=bert={tmp_path}"], ())
    if precisions == ["fp32"]:
        with pytest.raises(InputError, match=r"beside fp32: got PRECISION=fp32; add PRECISION=int8 or bf16"):
            choose_data(settings, BOTH, precisions)
    else:
        assert choose_data(settings, BOTH, precisions)["bert"].calibration == tmp_path
    assert choose_data(read_settings([], ()), BOTH, precisions)["bert"].calibration is None


def test_archives_that_others_made_are_not_built(tmp_path):
    assert main(["check", f"MODELS={tmp_path}/old.mar"]) == 0
    assert main(["check", "MODELS=nothing"]) == 2


@pytest.mark.parametrize("command", ["check", "build"])
def test_a_wrong_value_is_exit_code_2(command, capsys):
    assert main([command, "MODELS=bert", f"WEIGHTS={ROOT / 'handlers'}"]) == 2
    assert "must hold model.safetensors or" in capsys.readouterr().err
