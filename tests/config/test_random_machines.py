"""On any machine: workers' CPUs are allowed, disjoint, within the quota, and what the launcher hands out."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from config.errors import ConfigError
from config.rules.pinning import LauncherArgs, simulate_launcher
from config.topology import Topology, read_topology
from tests.config.sites import check_shares, make_door
from tests.config.synthetic import Machine, render_machine

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
    {"profile": st.sampled_from(["throughput", "latency"])},
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


def read_random(folder, machine: Machine, kept: set[int] | None, quota: float | None) -> Topology:
    """The machine, with a cpuset that keeps some CPUs, and a quota."""
    online = sorted(cpu for cpu, _, _ in machine.places())
    allowed = [cpu for cpu in online if kept is None or cpu % 7 in kept] or online[:1]
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
    kept=st.none() | st.sets(st.integers(0, 6), min_size=1),
    quota=st.none() | st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.7, 6.0]),
)
def test_plans_are_sound(folder, machine, request_, kept, quota):
    topology = read_random(folder, machine, kept, quota)
    try:
        site = make_door(topology, **request_)
    except ConfigError as error:
        assume(False)
        raise AssertionError from error
    check_shares(topology, site)
    for plan in site.instances.values():
        share = dataclasses.replace(
            topology, **{name: plan.machine[name] for name in ("cpus_allowed", "quota_cpus")}
        )
        check_cpus(share, plan)
        assert plan.pinned == (plan.launched and topology.owns_cpus)
        if request_.get("pinning", True):
            check_launcher(topology, plan)
            check_nodes(topology, plan, request_)


def check_cpus(topology: Topology, plan) -> None:
    workers, cores = plan.layout.workers_per_model.value, plan.layout.cores_per_worker.value
    core_list = plan.layout.core_list.value
    assert workers * cores <= max(1, int(topology.quota_cpus or len(topology.cores)))
    if not plan.pinned:
        assert core_list == list(topology.cpus_allowed) or plan.layout.server_cpus.value == core_list
        assert plan.layout.worker_cpus.value == [core_list] * workers
        return
    assert len(core_list) == len(set(core_list)) == workers * cores
    assert set(core_list) <= set(topology.cpus_allowed)
    used = [core for core in topology.cores if set(core.siblings) & set(core_list)]
    assert len(used) == len(core_list)  # one CPU per physical core
    confined = plan.layout.server_cpus.value
    assert confined is None or set(core_list) <= set(confined)


def check_launcher(topology: Topology, plan) -> None:
    if not plan.launched:
        assert not topology.numa
        return
    args = parse_args(plan.properties["cpu_launcher_args"].value)
    confined = plan.layout.server_cpus.value
    numactl = topology.launcher_numactl and (confined is None or 0 in confined)
    workers = plan.layout.workers_per_model.value
    for rank in range(workers):
        launched = simulate_launcher(
            args, topology.lscpu_view, workers=workers, rank=rank, numactl_works=numactl
        )
        assert launched.instances == 1
        assert list(launched.cpus) == (plan.layout.worker_cpus.value[rank] if plan.pinned else [])
        assert launched.omp_num_threads == plan.layout.cores_per_worker.value
        nodes = plan.layout.memory_nodes.value[rank]
        assert launched.memory_nodes == (None if nodes is None else tuple(nodes))
        assert nodes is None or set(nodes) <= set(topology.mems_allowed)


def check_nodes(topology: Topology, plan, request_) -> None:
    """Only who names the number of cores may get a worker that crosses nodes."""
    if "cores_per_worker" in request_ or not topology.numa or not plan.pinned:
        return
    nodes = {cpu: core.node for core in topology.cores for cpu in core.siblings}
    for cpus in plan.layout.worker_cpus.value:
        assert len({nodes[cpu] for cpu in cpus}) == 1


def parse_args(text: str) -> LauncherArgs:
    words = text.split(" ")
    value = {word: words[i + 1] for i, word in enumerate(words[:-1])}
    return LauncherArgs(
        node_id=int(value["--node_id"]) if "--node_id" in words else None,
        core_list=tuple(map(int, value["--core_list"].split(","))) if "--core_list" in words else (),
        cores_per_instance=int(value["--ncores_per_instance"]) if "--ncores_per_instance" in words else None,
        instances=int(value["--ninstances"]) if "--ninstances" in words else None,
        disable_numactl="--disable_numactl" in words,
        disable_taskset="--disable_taskset" in words,
    )
