"""model.yaml: the shipped ones are right, wrong ones name the file and the field."""

from __future__ import annotations

import pytest

from models.definition import list_default_models, list_models, read_definition
from models.errors import BuildError
from tests.conftest import TINY_IMAGE, write_definition


def test_the_shipped_models_are_there():
    assert list_models() == ["bert", "densenet121", "resnet50"]


@pytest.mark.parametrize("name", list_models())
def test_shipped_definitions_are_valid(name):
    definition = read_definition(name)
    assert set(definition.precisions) >= {"fp32", "bf16"}
    assert definition.default_precision == "fp32"


def test_densenet_is_a_definition_and_nothing_else():
    folder = read_definition("densenet121").path.parent
    assert [path.name for path in folder.iterdir()] == ["model.yaml"]
    assert not read_definition("densenet121").default_build


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(BuildError, match="MODELS must be one of bert, densenet121, resnet50: got vgg"):
        read_definition("vgg")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_sizes": [2, 4]}, r"batch_sizes must ascend from 1: got \[2, 4\]"),
        ({"batch_sizes": [1, 4, 2]}, "batch_sizes must ascend from 1"),
        ({"kind": "audio"}, "kind must be one of image, text: got audio"),
        ({"default_precision": "int4"}, "default_precision must be one of fp32: got int4"),
        ({"worker_memory_mib": {"bf16": 1}}, "worker_memory_mib must have one number for each precision"),
        ({"request_memory_mib": 0}, "request_memory_mib must be a whole number above 0: got 0"),
        (
            {"precisions": {"fp32": {"self_check_relative_error": 0.1, "canary_absolute": 0.1}}},
            r"precisions\.fp32: missing fields \['canary_relative'\]",
        ),
        (
            {"precisions": {"fp32": {**TINY_IMAGE["precisions"]["fp32"], "canary_relative": "much"}}},
            r"precisions\.fp32\.canary_relative must be a number, 0 or more: got 'much'",
        ),
        ({"accuracy_gate": {"agrement": 0.9}}, r"accuracy_gate: .*unknown fields \['agrement'\]"),
        ({"model": {}}, r"model: missing fields \['top_k'\]"),
        ({"model": {"top_k": 3, "sizes": 1}}, r"model: .*unknown fields \['sizes'\]"),
        *(
            ({"model": {"top_k": 3, **said}}, message)
            for said, message in [
                ({"size": 224}, r"model\.size must hold resize"),
                ({"size": {"resize": 256}}, r"must have a crop beside resize: 256.*resize: \[256, 256\]"),
                ({"size": {"resize": [256], "crop": 224}}, r"size\.resize must be one .*got \[256\]"),
                ({"size": {"resize": 256, "crop": 0}}, r"size\.crop must be one number of pixels.*got 0"),
                ({"size": {"resize": 224, "crop": 256}}, r"crop must be at most resize, 224: got 256"),
                ({"size": {"resize": [200, 300], "crop": 224}}, r"at most resize, \[200, 300\]: got 224"),
                ({"interpolation": "lanczos"}, "interpolation must be one of bilinear, bicubic: got lanczos"),
                ({"antialias": "no"}, "antialias must be one of true, false: got no"),
                ({"mean": 0.5}, "mean must be a number for each of red, green, blue: got 0.5"),
                ({"mean": [123.7, 116.3, 103.5]}, "mean must be of levels from 0 to 1: got .123.7.*by 255"),
                ({"std": [0.2, 0.2, 0]}, "std must be of levels from 0 to 1"),
            ]
        ),
        ({"batch_sizes": 4}, "batch_sizes must be a list"),
        ({"colour": "red"}, r"unknown fields \['colour'\]"),
    ],
)
def test_wrong_definitions_name_the_field(tmp_path, change, message):
    with pytest.raises(BuildError, match=message):
        write_definition(tmp_path, {**TINY_IMAGE, **change})


def test_a_missing_field_is_named(tmp_path):
    raw = {key: value for key, value in TINY_IMAGE.items() if key != "handler"}
    with pytest.raises(BuildError, match=r"model\.yaml: missing fields \['handler'\]"):
        write_definition(tmp_path, raw)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"model\.yaml cannot be read: while parsing"),
        ("- a", "must hold fields and values: got list"),
    ],
)
def test_a_file_that_is_no_mapping_is_named(tmp_path, text, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.yaml").write_text(text)
    with pytest.raises(BuildError, match=message):
        read_definition("mine", tmp_path)


def test_the_default_models_are_those_that_say_so():
    assert list_default_models() == [name for name in list_models() if read_definition(name).default_build]
