"""What one request may cost: the plan's numbers, and those of handlers that run without a plan."""

from __future__ import annotations

import pytest

from config.definitions import list_models, read_definitions
from config.rules.limits import plan_limits
from config.rules.memory import set_mib
from config.rules.network import MAX_REQUEST_BYTES
from handlers.cpu_image_classifier import CpuImageClassifier
from tests.config.planning import HERE, make_inputs, make_model, plan_machine

MODELS = HERE.parents[1] / "models"


def test_the_plan_and_the_handler_say_the_same():
    planned = plan_limits(make_model("resnet50"))
    assert {name: limit.value for name, limit in planned.items()} == CpuImageClassifier.LIMITS
    assert all(limit.reason for limit in planned.values())


def test_the_worst_batch_is_part_of_a_workers_memory():
    precisions = {"big": plan_machine("two-cores").models["bert"].precision}

    def need(mib: int) -> int:
        return set_mib([make_model("big", request_memory_mib=mib)], make_inputs(), precisions)

    assert need(700) - need(200) == 500


@pytest.mark.parametrize("name", list_models(MODELS))
def test_image_models_count_a_batch_of_bodies_and_one_picture(name):
    (model,) = read_definitions(MODELS, [name])
    if model.kind == "image":
        bodies = max(model.batch_sizes) * MAX_REQUEST_BYTES >> 20
        assert model.request_memory_mib >= bodies + CpuImageClassifier.LIMITS["decode_mib"]
