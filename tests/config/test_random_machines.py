"""On any machine: workers' CPUs are allowed, disjoint, within the quota, and what the launcher hands out."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from config.errors import ConfigError
from config.planning.launcher import simulate_launcher
from config.topology import Topology, read_topology
from tests.config.planning import plan_machine
from tests.config.synthetic import Machine, render_machine
from tests.config.test_instances import check_shares

machines = st.builds(
    Machine,
    sockets=st.integers(1, 3),
    cores=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    threads=st.sampled_from([1, 2]),
    adjacent=st.booleans(),
    interleaved=st.booleans(),
    nodes=st.sampled_from([0, 1, 1, 2]),
    l3_cores=st.sampled_from([0, 2, 3, 4]),
    offline=st.sets(st.integers(1, 20), max_size=4).map(lambda cpus: tuple(sorted(cpus))),
    container=st.booleans(),
    numactl=st.booleans(),
    memory_gib=st.sampled_from([8, 16, 64, 512]),
)
requests = st.fixed_dictionaries(
    {"mode": st.sampled_from(["throughput", "latency"])},
    optional={
        "instances": st.integers(1, 4),
        "workers": st.integers(1, 8),
        "cores_per_worker": st.integers(1, 6),
        "pinning": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("machine")


def read_random(folder, machine: Machine, cpuset: set[int] | None, quota: float | None) -> Topology:
    """The machine, with a cpuset that keeps some CPUs, and a quota."""
    online = sorted(cpu for cpu, _, _ in machine.places())
    allowed = [cpu for cpu in online if cpuset is None or cpu % 7 in cpuset] or online[:1]
    groups = (
        "proc/self/cgroup:0::/",
        "proc/self/mountinfo:30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw",
        f"sys/fs/cgroup/cpu.max:{'max' if quota is None else int(quota * 100000)} 100000",
    )
    limited = dataclasses.replace(machine, allowed=",".join(map(str, allowed)), groups=groups)
    (folder / "recording.txt").write_text(render_machine(limited))
    return read_topology(folder)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    machine=machines,
    request_=requests,
    cpuset=st.none() | st.sets(st.integers(0, 6), min_size=1),
    quota=st.none() | st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.7, 6.0]),
)
def test_plans_are_sound(folder, machine, request_, cpuset, quota):
    topology = read_random(folder, machine, cpuset, quota)
    try:
        plan = plan_machine(topology, **request_)
    except ConfigError:
        assume(False)
    check_shares(topology, plan)
    for instance in plan.instances.values():
        check_cpus(topology, instance)
        assert instance.pinned == (instance.launched and topology.owns_cpus)
        if request_.get("pinning", True):
            check_launcher(topology, instance)
            check_nodes(topology, instance, request_)


def check_cpus(topology: Topology, plan) -> None:
    cpus = [cpu for rank in plan.worker_cpus for cpu in rank]
    workers = len(plan.worker_cpus)
    assert workers * plan.cores_per_worker <= max(1, int(topology.quota_cpus or len(topology.cores)))
    assert len(plan.memory_nodes) == workers
    if not plan.pinned:
        assert plan.worker_cpus == (plan.server_cpus or topology.cpus_allowed,) * workers
        return
    assert len(cpus) == len(set(cpus)) == workers * plan.cores_per_worker
    # one CPU per physical core
    assert sum(bool(set(core.siblings) & set(cpus)) for core in topology.cores) == len(cpus)


def check_launcher(topology: Topology, plan) -> None:
    if not plan.launched:
        assert not topology.numa
        return
    launched = simulate_launcher(
        plan.properties["cpu_launcher_args"], topology.lscpu_view, workers=len(plan.worker_cpus),
        numactl=topology.launcher_numactl,
    )  # fmt: skip
    for one, cpus, nodes in zip(launched, plan.worker_cpus, plan.memory_nodes, strict=True):
        assert (one.copies, one.cpus) == (1, cpus if plan.pinned else ())
        assert (one.threads, one.nodes) == (plan.cores_per_worker, nodes)
        assert nodes is None or set(nodes) <= set(topology.mems_allowed)


def check_nodes(topology: Topology, plan, request_) -> None:
    """Only who names the number of cores may get a worker that crosses nodes."""
    if "cores_per_worker" in request_ or not topology.numa or not plan.pinned:
        return
    nodes = {cpu: core.node for core in topology.cores for cpu in core.siblings}
    assert all(len({nodes[cpu] for cpu in cpus}) == 1 for cpus in plan.worker_cpus)
