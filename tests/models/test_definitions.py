"""model.yaml: the shipped ones are right, wrong ones name the file and the field."""

from __future__ import annotations

import pytest

from config.settings import Settings
from models.definition import read_definition
from models.errors import BuildError
from models.names import list_models
from tests.conftest import TINY_IMAGE, write_definition


def test_the_shipped_models_are_there():
    assert list_models() == ["bert", "densenet121", "resnet50", "ssdlite"]


@pytest.mark.parametrize("name", list_models())
def test_shipped_definitions_are_valid(name):
    definition = read_definition(name)
    narrow = set() if definition.is_own else {"bf16", "int8"}
    assert set(definition.precisions) == {"fp32", *narrow}
    assert definition.public or definition.is_own


def test_the_default_models_are_there():
    assert {*Settings().models} <= {*list_models()}


def test_four_lines_are_enough(tmp_path):
    lines = {"name": "mine", "handler": "text_embeddings", "weights": "owner/name", "example": "a text"}
    definition = write_definition(tmp_path, lines)
    assert definition.batch_sizes[0] == 1
    assert definition.options.token_lengths[-1] == 512
    assert definition.precisions["int8"].answer_relative > definition.precisions["fp32"].answer_relative


def test_a_handler_of_your_own_lies_beside_it(tmp_path):
    lines = {"name": "mine", "handler": "handler.py", "example": "a text", "options": {"anything": 1}}
    with pytest.raises(BuildError, match=r"handler must be one of image_classifier, .* got handler\.py"):
        write_definition(tmp_path, lines)
    (tmp_path / "mine" / "handler.py").touch()
    definition = write_definition(tmp_path, lines)
    assert (definition.is_own, definition.options) == (True, {"anything": 1})
    assert list(definition.precisions) == ["fp32"]


@pytest.mark.parametrize(
    ("said", "local"),
    [("owner/name", False), ("IMAGENET1K_V1", False), ("./w", True), ("/gone/w", True), ("w.pth", True)],
)
def test_weights_are_a_path_or_a_public_name(tmp_path, said, local):
    (tmp_path / "tiny_image").mkdir()
    (tmp_path / "tiny_image" / "w.pth").touch()
    definition = write_definition(tmp_path, {**TINY_IMAGE, "weights": said})
    assert (definition.local_weights is not None, definition.public == said) == (local, not local)


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(
        BuildError, match="MODELS must be one of bert, densenet121, resnet50, ssdlite: got vgg"
    ):
        read_definition("vgg")


FP32 = TINY_IMAGE["precisions"]["fp32"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch_sizes": [2, 4]}, "batch_sizes"),
        ({"batch_sizes": [1, 4, 2]}, "batch_sizes"),
        ({"batch_sizes": 4}, "batch_sizes"),
        ({"handler": "audio"}, "handler"),
        ({"memory": {"worker_mib": 1}}, r"memory\.request_mib"),
        ({"weights_sha256": "abc"}, "weights_sha256"),
        ({"precisions": {"fp32": {**FP32, "answer_relative": "much"}}}, r"fp32\.answer_relative"),
        ({"accuracy_gate": {"agrement": 0.9}}, "agrement"),
        ({"options": {"top_k": 0}}, "top_k"),
        ({"colour": "red"}, "colour"),
        *(
            ({"options": {"top_k": 3, **said}}, next(iter(said)))
            for said in (
                {"sizes": 1},
                {"size": 224},
                {"size": {"resize": 256}},
                {"size": {"resize": [256], "crop": 224}},
                {"size": {"resize": 256, "crop": 0}},
                {"size": {"resize": 224, "crop": 256}},
                {"size": {"resize": [200, 300], "crop": 224}},
                {"interpolation": "lanczos"},
                {"antialias": "often"},
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
    with pytest.raises(BuildError, match=r"model\.yaml: handler: Field required"):
        write_definition(tmp_path, raw)


@pytest.mark.parametrize("text", ["a: [", "- a"])
def test_a_file_that_is_no_mapping_is_named(tmp_path, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.yaml").write_text(text)
    with pytest.raises(BuildError, match=r"model\.yaml"):
        read_definition("mine", tmp_path)
