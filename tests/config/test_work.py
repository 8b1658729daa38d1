"""How long a batch may take: response time-outs, and what a batch of texts may hold."""

from __future__ import annotations

import pytest

from config.render import render_properties
from config.rules import limits as limits_of
from handlers.cpu_text_classifier import CpuTextClassifier
from handlers.shared import texts
from tests.config.planning import TEXTS, make_model, plan_machine

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


def test_texts_get_three_times_what_the_handler_lets_a_batch_take():
    timeout = limits_of.plan_response_timeout(BERT, 16, 2)
    assert timeout.value == 180
    limits = limits_of.plan_text_work(BERT, "bf16", 16, 2)
    assert timeout.value >= 3 * 2 * limits["batch_s"].value


def test_the_default_time_out_is_the_longest_of_the_models():
    plan = plan_machine("two-cores", batch="8")
    timeouts = {name: model.response_timeout_s.value for name, model in plan.models.items()}
    assert timeouts == {"bert": 180, "resnet50": 101}
    assert plan.properties["default_response_timeout"].value == "180"


def test_the_handler_knows_each_limit_and_reads_as_much():
    assert set(limits_of.plan_text_work(BERT, "fp32", 8, 2)) == set(CpuTextClassifier.LIMITS)
    assert limits_of.CHARACTERS_PER_TOKEN == texts.CHARACTERS_PER_TOKEN


def test_requests_arrive_unparsed_and_the_workers_are_seen_with_it():
    for changes in ({}, {"pinning": False}):
        plan = plan_machine("two-cores", **changes)
        assert "\ndecode_input_request=false\n" in render_properties(plan)
        assert plan.worker_environment["TS_DECODE_INPUT_REQUEST"].value == "false"
