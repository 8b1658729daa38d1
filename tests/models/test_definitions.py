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
    assert (name in list_default_models()) is definition.default_build


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(BuildError, match="MODELS must be one of bert, densenet121, resnet50: got vgg"):
        read_definition("vgg")


FP32 = TINY_IMAGE["precisions"]["fp32"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch_sizes": [2, 4]}, "batch_sizes"),
        ({"batch_sizes": [1, 4, 2]}, "batch_sizes"),
        ({"batch_sizes": 4}, "batch_sizes"),
        ({"kind": "audio"}, "kind"),
        ({"default_precision": "int4"}, "default_precision"),
        ({"worker_memory_mib": {"bf16": 1}}, "worker_memory_mib"),
        ({"request_memory_mib": 0}, "request_memory_mib"),
        ({"precisions": {"fp32": {**FP32, "canary_relative": "much"}}}, r"fp32\.canary_relative"),
        ({"accuracy_gate": {"agrement": 0.9}}, "agrement"),
        ({"model": {}}, "top_k"),
        ({"colour": "red"}, "colour"),
        *(
            ({"model": {"top_k": 3, **said}}, next(iter(said)))
            for said in (
                {"sizes": 1},
                {"size": 224},
                {"size": {"resize": 256}},
                {"size": {"resize": [256], "crop": 224}},
                {"size": {"resize": 256, "crop": 0}},
                {"size": {"resize": 224, "crop": 256}},
                {"size": {"resize": [200, 300], "crop": 224}},
                {"interpolation": "lanczos"},
                {"antialias": "no"},
                {"mean": 0.5},
                {"mean": [123.7, 116.3, 103.5]},
                {"std": [0.2, 0.2, 0]},
            )
        ),
    ],
)
def test_wrong_definitions_name_the_field(tmp_path, change, field):
    with pytest.raises(BuildError, match=field):
        write_definition(tmp_path, {**TINY_IMAGE, **change})


def test_a_missing_field_is_named(tmp_path):
    raw = {key: value for key, value in TINY_IMAGE.items() if key != "handler"}
    with pytest.raises(BuildError, match=r"model\.yaml: missing fields \['handler'\]"):
        write_definition(tmp_path, raw)


@pytest.mark.parametrize("text", ["a: [", "- a"])
def test_a_file_that_is_no_mapping_is_named(tmp_path, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.yaml").write_text(text)
    with pytest.raises(BuildError, match=r"model\.yaml"):
        read_definition("mine", tmp_path)
