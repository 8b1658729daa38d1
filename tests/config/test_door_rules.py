"""What is planned for the door: slots from workers and memory, places from its own memory."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from config.errors import ConfigError
from config.rules.door import (
    BUFFER_BYTES,
    BUFFERS_OF_LARGE,
    HEADER_BYTES,
    REWRITE_BYTES,
    SMALL_BYTES,
    list_places,
    plan_door,
)
from config.rules.network import MAX_REQUEST_BYTES
from config.rules.site import make_site
from config.topology import read_topology
from tests.config.doors import plan_behind_door
from tests.config.planning import INSTALLED, MACHINES, make_inputs, make_model


def test_a_photograph_fits_into_a_buffer_with_its_headers():
    assert SMALL_BYTES >= 300 << 10
    assert SMALL_BYTES + HEADER_BYTES + REWRITE_BYTES <= BUFFER_BYTES
    assert BUFFER_BYTES % 16 == 0  # HAProxy would round it up


@pytest.mark.parametrize("machine", ["two-cores", "two-sockets-smt", "container-quota-v2"])
@pytest.mark.parametrize("profile", ["throughput", "latency"])
def test_an_instance_is_handed_what_its_workers_compute_and_gather(machine, profile):
    plan = plan_behind_door(machine, profile=profile)
    for name, instance in plan.instances.items():
        for model in instance.models:
            wanted = 2 * instance.workers * plan.models[model].batch_size.value
            assert 1 <= plan.door[f"{model}.{name}.maxconn"].value <= wanted
            assert 1 <= plan.door[f"{model}.{name}.large_maxconn"].value <= wanted


@pytest.mark.parametrize("machine", ["two-cores", "two-sockets-smt", "container-quota-v2"])
def test_torchserves_queue_holds_all_that_is_handed_over_at_once(machine):
    """A full one answers 503 at once, three times within milliseconds; the health check needs a place too."""
    models = tuple(make_model(name) for name in ("image", "text"))
    inputs = make_inputs(models=tuple(model.name for model in models), batch="image=1,text=4")
    site = make_site(read_topology(MACHINES / machine), models, inputs, INSTALLED)
    for name, instance in site.instances.items():
        for model in instance.models:
            small, large = (site.plan.door[f"{model}.{name}.{what}"] for what in ("maxconn", "large_maxconn"))
            assert int(instance.properties["job_queue_size"].value) > small.value + large.value


def test_with_room_for_the_bodies_it_is_all_of_that():
    plan = plan_behind_door("two-cores", batch="8")
    assert plan.door["resnet50.a1.maxconn"].value == 2 * 1 * 8


@pytest.mark.parametrize("bodies_mib", [64, 128, 256, 1024])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_what_an_instance_is_handed_fits_its_memory(bodies_mib, models):
    """Small ones as large as they may be, and large ones of the largest size; at least one of each."""
    served = tuple(make_model(f"m{number}") for number in range(models))
    inputs = make_inputs(models=tuple(model.name for model in served))
    site = make_site(read_topology(MACHINES / "two-sockets-smt"), served, inputs, INSTALLED)
    shrunk = {
        name: replace(
            plan, java=replace(plan.java, bodies_mib=replace(plan.java.bodies_mib, value=bodies_mib))
        )
        for name, plan in site.instances.items()
    }
    door = plan_door(inputs, shrunk, 512)
    for name, plan in shrunk.items():
        small = sum(door[f"{model}.{name}.maxconn"].value for model in plan.models) * SMALL_BYTES
        large = sum(door[f"{model}.{name}.large_maxconn"].value for model in plan.models) * MAX_REQUEST_BYTES
        assert small <= bodies_mib << 19 or all(door[f"{m}.{name}.maxconn"].value == 1 for m in plan.models)
        least = all(door[f"{model}.{name}.large_maxconn"].value == 1 for model in plan.models)
        assert small + large <= bodies_mib << 20 or least


@pytest.mark.parametrize(("memory_mib", "places", "large"), [(512, 273, 83), (128, 68, 20), (1, 1, 1)])
def test_what_waits_fits_the_doors_memory(memory_mib, places, large):
    door = plan_behind_door(memory_mib=memory_mib).door
    assert (door["places"].value, door["large_places"].value) == (places, large)
    if memory_mib > 1:
        taken = 2 * (places + BUFFERS_OF_LARGE * large) * BUFFER_BYTES
        assert taken <= memory_mib << 20


def test_the_deadline_is_the_one_asked_for():
    assert plan_behind_door(deadline_ms=1500).door["deadline_ms"].value == 1500


def test_every_value_has_a_reason():
    for name, setting in plan_behind_door().door.items():
        assert len(setting.reason) > 10, name


def test_places_for_both_generations():
    places = list_places(make_inputs(port=8000))
    assert places[0] == ("a1", 8010)
    assert places[-1] == ("b4", 8080)
    assert len({port for _, port in places}) == len(places) == 8
    plan = plan_behind_door(port=8000)
    assert {(name, one.port) for name, one in plan.instances.items()} <= set(places)
    assert list_places(make_inputs(port=8000, generation="b")) == places


@pytest.mark.parametrize("name", ["a b", "ä", "x.large", "x.door", 'a"b'])
def test_a_name_that_haproxy_cannot_have_is_refused(name):
    with pytest.raises(ConfigError, match=f"model's name must be .*: got {re.escape(name)} "):
        make_site(
            read_topology(MACHINES / "two-cores"),
            (make_model(name),),
            make_inputs(models=(name,)),
            INSTALLED,
        )
