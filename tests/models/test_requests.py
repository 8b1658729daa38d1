"""WEIGHTS=: words, paths and one value for each model."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import BuildError
from models.request import WeightsRequest, parse_weights

BOTH = ["resnet50", "bert"]


def test_a_word_holds_for_all_models():
    assert parse_weights("random", BOTH) == {name: WeightsRequest(source="random") for name in BOTH}


def test_nothing_means_auto():
    assert parse_weights("", ["bert"])["bert"].source == "auto"


def test_each_model_can_have_its_own(tmp_path):
    parsed = parse_weights(f"bert={tmp_path},resnet50=random", BOTH)
    assert parsed["bert"] == WeightsRequest(source="path", path=Path(tmp_path))
    assert parsed["resnet50"].source == "random"


def test_one_path_fits_one_model(tmp_path):
    assert parse_weights(str(tmp_path), ["bert"])["bert"].path == tmp_path
    with pytest.raises(
        BuildError, match=f"a path for 2 models; write WEIGHTS=resnet50={tmp_path} or MODELS=resnet50"
    ):
        parse_weights(str(tmp_path), BOTH)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prtrained",
            "WEIGHTS must be auto, pretrained, random, a path, .*got prtrained, which does not exist",
        ),
        ("vgg=random", r"WEIGHTS names vgg, which is not among MODELS \(bert\)"),
    ],
)
def test_wrong_values_say_what_is_allowed(text, message):
    with pytest.raises(BuildError, match=message):
        parse_weights(text, ["bert"])
