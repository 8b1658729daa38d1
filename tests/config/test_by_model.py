"""BATCH, DELAY_MS and SLO_P99_MS as people give them."""

from __future__ import annotations

import pytest

from config.errors import ConfigError
from config.rules.batching import find_number, parse_by_model, render_by_model
from tests.config.planning import plan_machine
from tests.config.sites import make_door


@pytest.mark.parametrize(
    ("text", "numbers", "rendered"),
    [
        ("", {}, ""),
        ("8", {"": 8}, "8"),
        (" resnet50=4, bert=8", {"resnet50": 4, "bert": 8}, "bert=8,resnet50=4"),
    ],
)
def test_there_and_back(text, numbers, rendered):
    assert parse_by_model("BATCH", text) == numbers
    assert render_by_model(numbers) == rendered


@pytest.mark.parametrize(
    "text", ["x", "8,4", "8,bert=4", "bert=4,8", "bert=4,bert=5", "bert=", "=4", "-1", "1.5"]
)
def test_what_is_no_number_by_model(text):
    with pytest.raises(ConfigError, match=f"BATCH must be a whole number, .*: got {text}$"):
        parse_by_model("BATCH", text)


def test_of_a_model_that_is_not_named_nothing_is_asked():
    assert [find_number("BATCH", text, "bert") for text in (None, "3", "resnet50=4")] == [None, 3, None]


def test_what_is_given_is_planned():
    plan = plan_machine("two-cores", batch="bert=3", delay_ms="bert=5,resnet50=2")
    batches = {name: model.batch_size.reason for name, model in plan.models.items()}
    assert batches["bert"] == "BATCH=bert=3 was given"
    assert batches["resnet50"] != "BATCH=bert=3 was given"
    assert [plan.models[name].max_batch_delay_ms.value for name in ("bert", "resnet50")] == [5, 2]


def test_behind_a_door_a_models_own_number_reaches_its_instances():
    site = make_door("two-cores", batch="bert=3,resnet50=2")
    given = {
        name: model.batch_size.value for one in site.instances.values() for name, model in one.models.items()
    }
    assert given == {"bert": 3, "resnet50": 2}
