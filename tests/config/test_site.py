"""Instances behind the door: their shares of a machine, their plans, and the plan of the whole."""

from __future__ import annotations

import dataclasses

import pytest

from config.errors import ConfigError
from config.plan import Inputs
from config.rules.instances import split_cores
from config.rules.layout import choose_cores
from config.rules.site import make_site
from config.topology import Topology, read_topology
from tests.config.planning import INSTALLED, MACHINES, MODELS, make_inputs
from tests.config.sites import check_shares, make_door
from tests.config.synthetic import Machine, render_machine
from tests.config.test_layout import own

ALL = sorted(folder.name for folder in MACHINES.iterdir())


def read_made_up(tmp_path, **values) -> Topology:
    (tmp_path / "recording.txt").write_text(render_machine(Machine(**values)))
    return read_topology(tmp_path)


@pytest.mark.parametrize("machine", ALL)
def test_shares_are_disjoint_and_all_there_is(machine):
    topology, site = read_topology(MACHINES / machine), make_door(machine)
    check_shares(topology, site)
    used = {cpu for plan in site.instances.values() for cpu in plan.machine["cpus_allowed"]}
    cores = choose_cores(topology) if topology.owns_cpus else topology.cores
    assert used == {cpu for core in cores for cpu in core.siblings}


@pytest.mark.parametrize(
    ("machine", "count"),
    [
        ("two-cores", 2), ("single-socket", 2), ("container-quota-v1", 1), ("container-quota-v2", 2),
        ("two-sockets-smt", 2), ("interleaved-nodes", 2), ("sub-numa-clusters", 4), ("container-cpuset", 2),
    ],
)  # fmt: skip
def test_one_instance_for_each_node_else_two(machine, count):
    site = make_door(machine)
    assert list(site.instances) == [f"a{number}" for number in range(1, count + 1)]
    nodes = [{core["node"] for core in plan.machine["cores"]} for plan in site.instances.values()]
    assert all(len(own) == 1 for own in nodes)


def test_latency_is_not_halved_for_a_second_instance():
    site = make_door("single-socket", profile="latency")
    assert list(site.instances) == ["a1"]
    assert list(make_door("sub-numa-clusters", profile="latency").instances) == ["a1", "a2", "a3", "a4"]
    assert list(make_door("single-socket", profile="latency", instances=2).instances) == ["a1", "a2"]


def test_more_nodes_than_instances_are_joined(tmp_path):
    site = make_door(read_made_up(tmp_path, sockets=3, nodes=2, cores=4))
    nodes = [plan.machine["nodes"] for plan in site.instances.values()]
    assert nodes == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("sizes", "count", "shares"),
    [
        ((8,), 1, (8,)), ((7,), 2, (4, 3)), ((7,), 3, (3, 2, 2)), ((1,), 1, (1,)),
        ((5, 3), 2, (5, 3)), ((5, 3), 1, (8,)), ((6, 2), 3, (3, 3, 2)), ((6, 2), 4, (2, 2, 2, 2)),
        ((4, 4, 4), 2, (4, 8)), ((1, 1, 8), 2, (2, 8)), ((8, 1, 1), 3, (8, 1, 1)),
        ((2, 2, 2, 2, 2, 2), 4, (2, 4, 2, 4)),
    ],
)  # fmt: skip
def test_cuts_are_even_and_between_nodes(sizes, count, shares):
    core = read_topology(MACHINES / "single-socket").cores[0]
    cores = [dataclasses.replace(core, node=node) for node, size in enumerate(sizes) for _ in range(size)]
    assert tuple(map(len, split_cores(cores, count))) == shares


def test_the_same_inputs_are_the_same_bytes():
    one, other = make_door("sub-numa-clusters"), make_door("sub-numa-clusters")
    assert one.plan.to_json() == other.plan.to_json()
    assert [plan.to_json() for plan in one.instances.values()] == [
        plan.to_json() for plan in other.instances.values()
    ]


def test_an_instance_was_asked_for_what_the_whole_was():
    """A new input must be handed down, or left to the door on purpose."""
    changes = {
        "precision": "bf16", "profile": "latency", "allocator": "tcmalloc", "openmp": "gnu",
        "backend": "eager", "pinning": False, "off": ("trace",), "cores_per_worker": 1,
        "workers": 2, "port": 9000,
        "bind": "0.0.0.0", "token_file": "/t", "instances": 2, "deadline_ms": 5000, "tls_cert": "/c",
        "tls_key": "/k", "generation": "b", "prefix": "/p", "model_store": "/m", "topology": "other",
        "batch": "bert=3,resnet50=2", "delay_ms": "2",
        "slo_p99_ms": 300, "run_dir": "/kit/run", "package_set": "current",
    }  # fmt: skip
    asked = make_inputs(**changes)
    plain = Inputs(models=(), prefix="", model_store="")
    assert all(
        getattr(asked, field.name) != getattr(plain, field.name) for field in dataclasses.fields(Inputs)
    )
    got = make_door("two-cores", **changes).instances["b1"].inputs
    own = {"workers": 1, "port": 9050, "bind": "127.0.0.1"}
    own["run_dir"] = "/kit/run/instances/b1"
    doors = ("token_file", "instances", "deadline_ms", "tls_cert", "tls_key", "generation")
    for field in dataclasses.fields(Inputs):
        wanted = plain if field.name in doors else asked
        assert getattr(got, field.name) == own.get(field.name, getattr(wanted, field.name)), field.name


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({"workers": 8}, [4, 4]),
        ({"workers": 1}, [1]),
        ({"workers": 3}, [3]),
        ({"workers": 4, "instances": 4}, [1, 1, 1, 1]),
        ({"workers": 4, "instances": 1}, [4]),
    ],
)
def test_workers_are_those_of_the_whole(changes, workers):
    site = make_door("single-socket", **changes)
    assert [plan.layout.workers_per_model.value for plan in site.instances.values()] == workers
    assert site.plan.layout.workers_per_model.value == sum(workers)
    assert {model.workers.value for model in site.plan.models.values()} == {sum(workers)}
    assert site.plan.inputs.workers == changes["workers"]


def test_unequal_shares_are_told_of():
    site = make_door("offline-cpus", workers=2)
    assert [plan.layout.cores_per_worker.value for plan in site.instances.values()] == [3, 2]
    assert site.plan.layout.cores_per_worker.value == 2
    assert site.plan.layout.worker_cpus.value == [[0, 1, 3], [4, 5]]


def test_fewer_instances_where_two_would_be_too_small():
    """Two shares of these 9 GiB hold no worker of both models each."""
    topology = dataclasses.replace(read_topology(MACHINES / "two-cores"), memory_limit_mib=9216)
    assert list(make_door(topology).instances) == ["a1"]
    with pytest.raises(ConfigError, match=r"instance a1 of 2, with CPUs 0; fewer instances have more each: "):
        make_door(topology, instances=2)


def test_a_worker_with_more_cores_than_half_the_machine_has_one_instance():
    site = make_door("two-cores", cores_per_worker=2)
    assert site.plan.layout.worker_cpus.value == [[0, 1]]
    assert list(site.instances) == ["a1"]


def test_an_instance_leaves_the_cpus_of_others_where_nothing_pins_it():
    site = make_door("two-cores", pinning=False)
    assert [plan.layout.server_cpus.value for plan in site.instances.values()] == [[0], [1]]
    assert site.plan.layout.server_cpus.value == [0, 1]


@pytest.mark.parametrize(
    ("machine", "quota", "threads"),
    # the quota's whole part, shared out to two; of two nodes too, none of which is ours
    [
        ("single-socket", 2.5, [1, 1]),
        ("single-socket", 5.0, [3, 2]),
        ("two-sockets-smt", 24.0, [12, 12]),
        ("container-cpuset", 2.5, [1, 1]),
    ],
)
def test_instances_on_shared_cpus_have_the_quotas_threads_together(machine, quota, threads):
    topology = own(machine, quota)
    site = make_door(topology)
    check_shares(topology, site)
    plans = site.instances.values()
    assert [p.layout.workers_per_model.value * p.layout.cores_per_worker.value for p in plans] == threads
    assert all(cpus == list(topology.cpus_allowed) for cpus in site.plan.layout.worker_cpus.value)
    assert {plan.layout.server_cpus.value for plan in (site.plan, *plans)} == {None}
    assert site.plan.layout.core_list.value == list(topology.cpus_allowed)
    assert sum(plan.machine["memory_limit_mib"] for plan in plans) < topology.memory_limit_mib


def test_the_whole_is_asked_at_the_door():
    properties = make_door("two-cores", port=9000, bind="0.0.0.0").plan.properties
    addresses = {key: setting.value for key, setting in properties.items() if key.endswith("_address")}
    assert addresses == {
        "inference_address": "http://0.0.0.0:9000",
        "metrics_address": "http://127.0.0.1:9002",
    }
    assert "cpu_launcher_args" not in properties
    tls = make_door("two-cores", tls_cert="/c", tls_key="/k").plan.properties["inference_address"].value
    assert tls == "https://127.0.0.1:8080"


def test_a_machine_without_haproxy():
    topology = read_topology(MACHINES / "two-cores")
    without = dataclasses.replace(INSTALLED, haproxy=None)
    with pytest.raises(ConfigError, match="haproxy is not on this machine"):
        make_site(topology, MODELS, make_inputs(topology="live"), without)
