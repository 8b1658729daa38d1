"""What is planned for the reverse proxy: requests in flight from workers and memory, places from its own
memory."""

from __future__ import annotations

import dataclasses

import pytest

from config.errors import ConfigError
from config.planning.proxy import (
    BUFFER_BYTES,
    BUFFERS_OF_LARGE,
    HEADER_BYTES,
    MAX_REQUEST_BYTES,
    REWRITE_BYTES,
    SMALL_BYTES,
    plan_proxy,
)
from config.settings import Settings
from tests.config.planning import find_machine, make_model, plan_machine

MACHINES = ["two-cores", "two-sockets-smt", "container-quota-v2"]


def test_a_photograph_fits_into_a_buffer_with_its_headers():
    assert SMALL_BYTES >= 300 << 10
    assert SMALL_BYTES + HEADER_BYTES + REWRITE_BYTES <= BUFFER_BYTES
    assert BUFFER_BYTES % 16 == 0  # HAProxy would round it up


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("mode", ["throughput", "latency"])
def test_an_instance_is_passed_what_its_workers_compute_and_gather(machine, mode):
    """TorchServe's queue holds all of it: a full one answers 503 at once, three times within milliseconds;
    the health check needs a place too."""
    for instance in plan_machine(machine, mode=mode, batch={"resnet50": 4}).instances.values():
        assert int(instance.properties["job_queue_size"]) == instance.queue_size
        for model in instance.models.values():
            wanted = 2 * model.workers * model.batch_size
            assert 1 <= model.maxconn <= wanted
            assert 1 <= model.large_maxconn <= wanted
            assert instance.queue_size > model.maxconn + model.large_maxconn


def test_with_room_for_the_bodies_it_is_all_of_that():
    assert plan_machine("two-cores", batch={"*": 8}).models["resnet50"].maxconn == 2 * 1 * 8


def test_queue_is_one_number_for_all_models():
    models = (make_model("large", batch_sizes=(1, 16)), make_model("small", batch_sizes=(1, 4)))
    plan = plan_machine("single-socket", models, precision="bf16", batch={"large": 16}, instances=1)
    assert plan.instances["a1"].queue_size > 2 * 8 * 16  # the small ones of `large`, and more


@pytest.mark.parametrize("memory_gib", [8, 24, 64, 256])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_what_an_instance_is_passed_fits_its_memory(memory_gib, models):
    """Small ones as large as they may be, and large ones of the largest size; at least one of each."""
    served = tuple(make_model(f"m{number}", {"fp32": 100}, 20) for number in range(models))
    machine = dataclasses.replace(find_machine("two-sockets-smt"), memory_limit_mib=memory_gib << 10)
    for instance in plan_machine(machine, served, batch={"*": 16}).instances.values():
        room = instance.java.bodies_mib << 20
        small = sum(model.maxconn for model in instance.models.values()) * SMALL_BYTES
        large = sum(model.large_maxconn for model in instance.models.values()) * MAX_REQUEST_BYTES
        assert small <= room // 2 or all(model.maxconn == 1 for model in instance.models.values())
        assert small + large <= room or all(model.large_maxconn == 1 for model in instance.models.values())


@pytest.mark.parametrize(("memory_mib", "places", "large"), [(512, 273, 83), (128, 68, 20), (1, 1, 1)])
def test_what_waits_fits_haproxys_memory(memory_mib, places, large):
    proxy = plan_proxy(Settings(), models=2, cores=2, memory_mib=memory_mib, why={})
    assert (proxy.places, proxy.large_places) == (places, large)
    if memory_mib > 1:
        assert 2 * (places + BUFFERS_OF_LARGE * large) * BUFFER_BYTES <= memory_mib << 20


@pytest.mark.parametrize("name", ["ä", "x.large", "x.entry", "x.queue"])
def test_a_name_that_haproxy_cannot_have_is_rejected(name):
    with pytest.raises(ConfigError, match="model's name must be "):
        plan_machine("two-cores", (make_model(name),))
