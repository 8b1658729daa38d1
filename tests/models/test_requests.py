"""MODELS=, WEIGHTS=, CALIBRATION=, EVAL=: words, paths and one value for each model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from models.__main__ import ROOT, main
from models.errors import InputError
from models.request import WeightsRequest, parse_paths, parse_weights

BOTH = ["resnet50", "bert"]


def test_a_word_holds_for_all_models():
    assert parse_weights("random", BOTH) == {name: WeightsRequest(source="random") for name in BOTH}


@pytest.mark.parametrize("text", ["", " "])
def test_nothing_means_not_given(text):
    assert parse_weights(text, ["bert"]) == {"bert": WeightsRequest(source="")}


def test_a_model_without_a_value_is_not_given():
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
    ("text", "message"),
    [
        (
            "prtrained",
            "WEIGHTS must be auto, pretrained, random, a path .*got prtrained, which does not exist",
        ),
        ("~nobody-of-that-name/x", "got ~nobody-of-that-name/x, which does not exist"),
        ("bert=", "WEIGHTS must be auto, .*: got 'bert=' without a value"),
        ("bert=random,", "got random,, which does not exist; a comma ends it before MODEL= of bert"),
        ("random,auto", "got random,auto, which does not exist; a comma ends it before MODEL= of bert"),
        ("bert=random,bert=auto", "WEIGHTS must have one value for each model: got two for bert"),
        ("bert=random,resnet50=auto", r"WEIGHTS names resnet50, which is not among MODELS \(bert\)"),
        ("/x/vgg=1", "got /x/vgg=1, which does not exist"),
        ("vgg=random", r"WEIGHTS names vgg, which is not among MODELS \(bert\)"),
    ],
)
def test_wrong_values_say_what_is_allowed(text, message):
    with pytest.raises(InputError, match=message):
        parse_weights(text, ["bert"])


@pytest.mark.parametrize("name", ["run=3,best", "bert=random"])
def test_what_exists_is_a_path_whatever_its_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    expected = WeightsRequest(source="path", path=tmp_path / name)
    assert parse_weights(name, ["bert"])["bert"] == expected
    assert parse_weights(str(tmp_path / name), ["bert"])["bert"] == expected


def test_a_models_path_may_hold_an_equals_sign(tmp_path):
    (tmp_path / "run=3").mkdir()
    assert parse_weights(f"bert={tmp_path}/run=3", BOTH)["bert"].path == tmp_path / "run=3"


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


def test_data_are_paths_that_exist(tmp_path):
    assert parse_paths("EVAL", f"bert={tmp_path}", BOTH) == {"bert": tmp_path}
    assert parse_paths("EVAL", "", BOTH) == {}
    with pytest.raises(InputError, match=r"CALIBRATION must be a path that exists.*: got random"):
        parse_paths("CALIBRATION", "bert=random", BOTH)


CHECK_ALONE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from models.__main__ import main
code = main(["check", *sys.argv[1:]])
assert not {"yaml", "torch", "numpy"} & set(sys.modules)
sys.exit(code)
"""


def check_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    # -I and -S: no site-packages, so anything but the standard library fails to import.
    command = [sys.executable, "-I", "-S", "-c", CHECK_ALONE, str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_values_are_checked_with_the_standard_library_alone(tmp_path):
    (tmp_path / "best.pth").write_bytes(b"x")
    given = ["--models", "resnet50 bert", "--weights", f"resnet50={tmp_path}/best.pth,bert=random"]
    done = check_alone(*given, "--precision", "int8", "--calibration", f"bert={tmp_path}", "--eval", "")
    assert (done.returncode, done.stderr) == (0, "")
    done = check_alone("--models", "resnet50 brt")
    assert done.returncode == 2
    assert done.stderr == "error: MODELS must be one of bert, densenet121, resnet50: got brt\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "randm"], "WEIGHTS must be auto, pretrained, random"),
        (["--models", "bert", "--eval", "absent"], "EVAL must be a path that exists"),
        (["--models", "bert", "--weights", str(ROOT / "handlers")], "must hold model.safetensors or"),
    ],
)
@pytest.mark.parametrize("command", ["check", "build"])
def test_a_wrong_value_is_exit_code_2(command, arguments, message, capsys):
    assert main([command, *arguments]) == 2
    assert message in capsys.readouterr().err
