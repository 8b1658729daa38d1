"""What one request may cost: the plan's numbers, and those of handlers that run without a plan."""

from __future__ import annotations

import dataclasses

import pytest

from config.definitions import list_models, read_definitions
from config.rules.java import plan_frontend_memory, set_mib, shared_mib
from config.rules.limits import plan_limits
from config.rules.network import MAX_REQUEST_BYTES
from config.topology import read_topology
from handlers.cpu_image_classifier import CpuImageClassifier
from tests.config.planning import HERE, MACHINES, make_inputs, make_model, plan_machine

MODELS = HERE.parents[1] / "models"


def test_the_plan_and_the_handler_say_the_same():
    planned = plan_limits(make_model("resnet50"), "fp32", 8, 2)
    assert {name: limit.value for name, limit in planned.items()} == CpuImageClassifier.LIMITS
    assert all(limit.reason for limit in planned.values())


def test_the_worst_batch_is_part_of_a_workers_memory():
    precisions = {"big": plan_machine("two-cores").models["bert"].precision}

    def need(mib: int) -> int:
        return set_mib([make_model("big", request_memory_mib=mib)], make_inputs(), precisions)

    assert need(700) - need(200) == 500


@pytest.mark.parametrize("name", list_models(MODELS))
def test_image_models_count_the_largest_picture_and_its_body(name):
    (model,) = read_definitions(MODELS, [name])
    if model.kind == "image":
        body = MAX_REQUEST_BYTES >> 20
        assert model.request_memory_mib >= body + CpuImageClassifier.LIMITS["decode_mib"]


def test_bodies_are_counted_once_for_all_workers():
    topology = read_topology(MACHINES / "two-cores")
    frontend = plan_frontend_memory(topology)
    java = frontend.heap_mib + frontend.direct_mib + 192
    assert shared_mib(topology) == java + 320 + int(topology.memory_limit_mib * 0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_container_of_3_and_a_quarter_gib_serves_resnet50(precision):
    small = dataclasses.replace(read_topology(MACHINES / "two-cores"), memory_limit_mib=3328)
    (model,) = read_definitions(MODELS, ["resnet50"])
    plan = plan_machine(small, (model,), precision=precision)
    assert plan.layout.workers_per_model.value == 1
