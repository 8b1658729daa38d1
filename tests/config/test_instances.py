"""Instances: their number, their shares of a machine, workers, ports, and what is behind HAProxy."""

from __future__ import annotations

import dataclasses

import pytest

from config.errors import ConfigError
from config.plan import Plan
from config.planning.instances import count_proxy_mib, split_cores
from config.planning.layout import choose_cores
from config.topology import Topology
from tests.config.planning import ALL_MACHINES, INSTALLED, find_machine, limit_cpus, plan_machine


def check_shares(topology: Topology, plan: Plan) -> None:
    """What holds on any machine."""
    instances = plan.instances.values()
    cpus = [cpu for one in instances for cpu in one.cpus]
    threads = [len(one.worker_cpus) * one.cores_per_worker for one in instances]
    if topology.owns_cpus:
        assert len(cpus) == len(set(cpus))
        assert set(cpus) <= set(topology.cpus_allowed)
    else:
        assert all(one.cpus == topology.cpus_allowed for one in instances)
        assert sum(threads) <= max(1, topology.quota_cpus or 0)
    assert sum(one.memory_mib for one in instances) + count_proxy_mib(topology) <= topology.memory_limit_mib
    assert sum(threads) <= topology.usable_cores
    for name, one in plan.instances.items():
        assert {cpu for rank in one.worker_cpus for cpu in rank} <= set(one.cpus)
        assert one.server_cpus is None or set(one.server_cpus) <= set(one.cpus)
        assert one.server_cpus is not None or one.launched or not topology.owns_cpus
        assert one.properties["inference_address"] == f"unix:/kit/run/instances/{name}/tmp/inference.sock"
        assert {model.workers for model in one.models.values()} == {len(one.worker_cpus)}
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_shares_are_disjoint_and_all_there_is(machine):
    topology, plan = find_machine(machine), plan_machine(machine)
    check_shares(topology, plan)
    used = {cpu for one in plan.instances.values() for cpu in one.cpus}
    cores = choose_cores(topology) if topology.owns_cpus else topology.cores
    assert used == {cpu for core in cores for cpu in core.siblings}


@pytest.mark.parametrize(
    ("machine", "changes", "count"),
    [
        ("two-cores", {}, 2), ("single-socket", {}, 2), ("container-quota-v1", {}, 1),
        ("container-quota-v2", {}, 2), ("two-sockets-smt", {}, 2), ("interleaved-nodes", {}, 2),
        ("sub-numa-clusters", {}, 4), ("container-cpuset", {}, 2),
        # latency is not halved for a second instance
        ("single-socket", {"mode": "latency"}, 1), ("sub-numa-clusters", {"mode": "latency"}, 4),
        ("single-socket", {"mode": "latency", "instances": 2}, 2),
        # more cores than half the machine
        ("two-cores", {"cores_per_worker": 2}, 1),
    ],
)  # fmt: skip
def test_an_instance_for_each_node_else_two(machine, changes, count):
    plan = plan_machine(machine, **changes)
    assert list(plan.instances) == [f"a{number}" for number in range(1, count + 1)]
    nodes = {cpu: core.node for core in find_machine(machine).cores for cpu in core.siblings}
    assert all(len({nodes[cpu] for cpu in one.cpus}) == 1 for one in plan.instances.values())


@pytest.mark.parametrize(
    ("sizes", "count", "shares"),
    [
        ((8,), 1, (8,)), ((7,), 2, (4, 3)), ((7,), 3, (3, 2, 2)), ((1,), 1, (1,)),
        ((5, 3), 2, (5, 3)), ((5, 3), 1, (8,)), ((6, 2), 3, (3, 3, 2)), ((6, 2), 4, (2, 2, 2, 2)),
        ((4, 4, 4), 2, (4, 8)), ((1, 1, 8), 2, (2, 8)), ((8, 1, 1), 3, (8, 1, 1)),
        ((2, 2, 2, 2, 2, 2), 4, (2, 4, 2, 4)), ((4,) * 6, 2, (12, 12)),
    ],
)  # fmt: skip
def test_cuts_are_even_and_between_nodes(sizes, count, shares):
    core = find_machine("single-socket").cores[0]
    cores = [dataclasses.replace(core, node=node) for node, size in enumerate(sizes) for _ in range(size)]
    assert tuple(map(len, split_cores(cores, count))) == shares


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        ({"workers": 8}, [4, 4]), ({"workers": 1}, [1]), ({"workers": 3}, [3]),
        ({"workers": 4, "instances": 4}, [1, 1, 1, 1]), ({"workers": 4, "instances": 1}, [4]),
    ],
)  # fmt: skip
def test_workers_are_those_of_all_instances(changes, workers):
    plan = plan_machine("single-socket", **changes)
    assert [len(one.worker_cpus) for one in plan.instances.values()] == workers
    assert {plan.count_workers(model) for model in plan.models} == {sum(workers)}


def test_fewer_instances_where_two_would_be_too_small():
    """Two shares of these 9 GiB hold no worker of both models each."""
    topology = dataclasses.replace(find_machine("two-cores"), memory_limit_mib=9216)
    assert list(plan_machine(topology).instances) == ["a1"]
    with pytest.raises(ConfigError, match=r"instance a1 of 2, with CPUs 0; fewer instances have more each: "):
        plan_machine(topology, instances=2)


def test_an_instance_leaves_the_cpus_of_others_where_nothing_pins_it():
    """Shares may be unequal."""
    pinned, unpinned = (
        plan_machine("offline-cpus", workers=2, pinning=pinning).instances.values()
        for pinning in (True, False)
    )
    assert [one.worker_cpus for one in pinned] == [((0, 1, 3),), ((4, 5),)]
    assert [one.server_cpus for one in unpinned] == [(0, 1, 3, 6, 9), (4, 5, 10)]


@pytest.mark.parametrize(
    ("machine", "quota", "threads"),
    # the quota's whole part, shared out to two; of two nodes too, none of which is ours
    [
        ("single-socket", 2.5, [1, 1]), ("single-socket", 5.0, [3, 2]), ("two-sockets-smt", 24.0, [12, 12]),
        ("container-cpuset", 2.5, [1, 1]),
    ],
)  # fmt: skip
def test_instances_on_shared_cpus_have_the_quotas_threads_together(machine, quota, threads):
    topology = limit_cpus(machine, quota)
    plan = plan_machine(topology)
    check_shares(topology, plan)
    instances = plan.instances.values()
    assert [len(one.worker_cpus) * one.cores_per_worker for one in instances] == threads
    assert all(cpus == topology.cpus_allowed for one in instances for cpus in one.worker_cpus)
    assert {one.server_cpus for one in instances} == {None}


@pytest.mark.parametrize(("generation", "ports"), [("a", [9010, 9020]), ("b", [9050, 9060])])
def test_names_and_ports_are_of_the_generation(generation, ports):
    plan = plan_machine(port=9000, generation=generation)
    assert {name: one.port for name, one in plan.instances.items()} == {
        f"{generation}{number}": port for number, port in enumerate(ports, start=1)
    }
    own, first = plan.instances[f"{generation}1"].properties, ports[0]
    assert (own["grpc_inference_port"], own["initial_worker_port"]) == (str(first + 3), str(first + 920))


def test_what_clients_see_is_the_reverse_proxys():
    proxy = plan_machine(port=9000, host="0.0.0.0", insecure=True, deadline_ms=1500, token_file="/t").proxy
    assert (proxy.host, proxy.port, proxy.metrics_port) == ("0.0.0.0", 9000, 9002)
    assert (proxy.deadline_ms, proxy.token_file) == (1500, "/t")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"instances": 3}, "INSTANCES must be 1 to 2 .*: got 3"),
        ({"workers": 3}, "WORKERS must be 1 to 2 .*: got 3"),
        ({"workers": 1, "instances": 2}, "WORKERS must be 2 or a multiple of it.*: got 1"),
        ({"cores_per_worker": 4}, "CORES_PER_WORKER must be 1 to 2 .*: got 4"),
        ({"workers": 2, "cores_per_worker": 2}, "WORKERS × CORES_PER_WORKER must be at most 2 .*: got 2 × 2"),
        (
            {"topology": "", "installed": dataclasses.replace(INSTALLED, haproxy=None)},
            "haproxy is not on this",
        ),
    ],
)
def test_what_a_machine_does_not_hold_is_named(changes, named):
    with pytest.raises(ConfigError, match=named):
        plan_machine("two-cores", **changes)
