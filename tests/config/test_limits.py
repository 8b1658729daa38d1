"""What one request may cost: the plan's numbers, and those of handlers that run without a plan."""

from __future__ import annotations

import dataclasses

import pytest

from config.render import render_properties
from config.rules import limits as limits_of
from config.rules.java import plan_frontend_memory, set_mib, shared_mib
from config.rules.limits import plan_limits
from config.topology import read_topology
from handlers.image_classifier import ImageClassifier
from handlers.shared import texts
from handlers.text_classifier import TextClassifier
from tests.config.planning import MACHINES, TEXTS, make_inputs, make_model, plan_machine


def test_the_plan_and_the_handler_say_the_same():
    planned = plan_limits(make_model("resnet50"), "fp32", 8, 2)
    assert {name: limit.value for name, limit in planned.items()} == ImageClassifier.LIMITS
    assert all(limit.reason for limit in planned.values())


def test_the_worst_batch_is_part_of_a_workers_memory():
    def need(mib: int) -> int:
        return set_mib([make_model("big", request_mib=mib)], make_inputs(), {"big": "ipex fp32"})

    assert need(700) - need(200) == 500


def test_bodies_are_counted_once_for_all_workers():
    topology = read_topology(MACHINES / "two-cores")
    frontend = plan_frontend_memory(topology)
    java = frontend.heap_mib + frontend.direct_mib + 192
    assert shared_mib(topology) == java + 320 + int(topology.memory_limit_mib * 0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_container_of_3_and_a_quarter_gib_serves_resnet50(precision):
    small = dataclasses.replace(read_topology(MACHINES / "two-cores"), memory_limit_mib=3328)
    model = make_model("resnet50", {"fp32": 1500, "bf16": 1400, "int8": 1400}, request_mib=260)
    plan = plan_machine(small, (model,), precision=precision)
    assert plan.layout.workers_per_model.value == 1


BERT = make_model("bert", **TEXTS)


@pytest.mark.parametrize(
    ("precision", "batch", "models", "batch_s", "tokens"),
    [
        # 28 s ÷ 1.7 ms; two models share a core, 2 s go to the tokenizer
        ("fp32", 8, 2, 28, 16_470),
        ("int8", 16, 2, 27, 56_250),
        # alone on its cores all that 16 requests of 8 texts of 512 tokens can have is computed in time
        ("int8", 16, 1, 57, 65_536),
        ("fp32", 1, 2, 29, 4_096),
    ],
)
def test_a_batch_of_texts_is_cut_by_tokens(precision, batch, models, batch_s, tokens):
    limits = limits_of.plan_text_work(BERT, precision, batch, models)
    assert (limits["batch_s"].value, limits["tokens_per_batch"].value) == (batch_s, tokens)
    assert tokens >= 8 * 512, "a whole request always fits"


@pytest.mark.parametrize(
    ("batch", "models", "seconds"), [(8, 2, 101), (16, 2, 202), (16, 1, 101), (1, 2, 60)]
)
def test_pictures_get_three_times_their_worst_batch(batch, models, seconds):
    timeout = limits_of.plan_response_timeout(make_model("resnet50"), batch, models)
    assert timeout.value == seconds
    assert timeout.value >= 3 * models * batch * limits_of.PICTURE_S


def test_only_limits_that_the_handler_knows_are_planned():
    some = make_model("own", limits=("decode_mib", "pixels"))
    assert plan_limits(some, "fp32", 8, 2).keys() == {"decode_mib", "pixels"}
    assert plan_limits(make_model("own", limits=("boxes",)), "fp32", 8, 2) == {}


def test_texts_get_three_times_what_the_handler_lets_a_batch_take():
    timeout = limits_of.plan_response_timeout(BERT, 16, 2)
    assert timeout.value == 180
    limits = limits_of.plan_text_work(BERT, "bf16", 16, 2)
    assert timeout.value >= 3 * 2 * limits["batch_s"].value


def test_the_handler_knows_each_limit_and_reads_as_much():
    assert set(limits_of.plan_text_work(BERT, "fp32", 8, 2)) == set(TextClassifier.LIMITS)
    assert limits_of.CHARACTERS_PER_TOKEN == texts.CHARACTERS_PER_TOKEN


def test_requests_arrive_unparsed_and_the_workers_are_seen_with_it():
    for changes in ({}, {"pinning": False}):
        plan = plan_machine("two-cores", **changes)
        assert "\ndecode_input_request=false\n" in render_properties(plan)
        assert plan.worker_environment["TS_DECODE_INPUT_REQUEST"].value == "false"
