"""Workers, cores and launcher arguments for each recorded machine and mode."""

from __future__ import annotations

import dataclasses

import pytest

from config.errors import ConfigError, FitError
from tests.config.planning import find_machine, limit_cpus, make_model, plan_one

LIST32 = ",".join(map(str, range(32)))
UNBOUND = "--disable_numactl --disable_taskset"
LIST16 = ",".join(map(str, range(16)))

# (machine, mode): workers, cores each, the CPU arguments of the launcher
TABLE = {
    ("two-cores", "throughput"): (2, 1, "--node_id 0"),
    ("two-cores", "latency"): (1, 2, "--node_id 0"),
    ("single-socket", "throughput"): (8, 1, "--node_id 0"),
    ("single-socket", "latency"): (1, 8, "--node_id 0"),
    ("two-sockets-smt", "throughput"): (32, 1, f"--core_list {LIST32} --ncores_per_instance 1"),
    ("two-sockets-smt", "latency"): (2, 16, f"--core_list {LIST32} --ncores_per_instance 16"),
    ("cloud-adjacent-siblings", "throughput"): (4, 1, "--core_list 0,2,4,6 --ncores_per_instance 1"),
    ("cloud-adjacent-siblings", "latency"): (1, 4, "--core_list 0,2,4,6 --ncores_per_instance 4"),
    ("sub-numa-clusters", "latency"): (4, 8, f"--core_list {LIST32} --ncores_per_instance 8"),
    ("amd-l3-groups", "throughput"): (32, 1, "--node_id 0"),
    ("amd-l3-groups", "latency"): (4, 8, "--node_id 0"),
    ("interleaved-nodes", "throughput"): (16, 1, f"--core_list {LIST16} --ncores_per_instance 1"),
    ("interleaved-nodes", "latency"):
        (2, 8, "--core_list 0,2,4,6,8,10,12,14,17,19,21,23,25,27,29,31 --ncores_per_instance 8"),
    ("container-cpuset", "throughput"):
        (4, 1, "--core_list 10,11,12,13 --ncores_per_instance 1 --disable_numactl"),
    ("container-quota-v2", "throughput"): (2, 1, f"--ncores_per_instance 1 {UNBOUND}"),
    ("container-quota-v2", "latency"): (1, 2, f"--ncores_per_instance 2 --ninstances 1 {UNBOUND}"),
    ("container-quota-v1", "throughput"): (1, 1, f"--ncores_per_instance 1 --ninstances 1 {UNBOUND}"),
    ("hybrid", "throughput"): (12, 1, "--core_list 0,2,4,6,8,10,12,14,16,17,18,19 --ncores_per_instance 1"),
    ("hybrid", "latency"): (1, 8, "--core_list 0,2,4,6,8,10,12,14 --ncores_per_instance 8"),
    ("offline-cpus", "throughput"): (5, 1, "--core_list 0,1,3,4,5 --ncores_per_instance 1"),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "mode"), TABLE)
def test_layout(machine, mode):
    plan = plan_one(machine, mode=mode)
    args = plan.properties["cpu_launcher_args"].replace(" --enable_jemalloc", "")
    assert (len(plan.worker_cpus), plan.cores_per_worker, args) == TABLE[machine, mode]


@pytest.mark.parametrize(
    ("machine", "changes", "expected"),
    [
        ("two-cores", {"workers": 1}, [[0, 1]]),
        ("two-cores", {"cores_per_worker": 2}, [[0, 1]]),
        ("two-cores", {"workers": 1, "cores_per_worker": 1}, [[0]]),
        ("single-socket", {"workers": 2}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("single-socket", {"workers": 3}, [[0, 1], [2, 3], [4, 5]]),
        ("single-socket", {"cores_per_worker": 3}, [[0, 1, 2], [3, 4, 5]]),
        ("amd-l3-groups", {"workers": 2, "cores_per_worker": 2}, [[0, 1], [8, 9]]),
        ("two-sockets-smt", {"workers": 2, "cores_per_worker": 1}, [[0], [16]]),
        ("two-sockets-smt", {"workers": 1, "cores_per_worker": 32}, [list(range(32))]),
        ("hybrid", {"workers": 2}, [[0, 2, 4, 6], [8, 10, 12, 14]]),
        ("hybrid", {"cores_per_worker": 12}, [[0, 2, 4, 6, 8, 10, 12, 14, 16, 17, 18, 19]]),
    ],
)
def test_given_numbers(machine, changes, expected):
    assert plan_one(machine, **changes).worker_cpus == tuple(map(tuple, expected))


def test_launcher_that_cannot_run_is_switched_off():
    plan = plan_one("no-numa")
    assert (plan.launched, plan.pinned, plan.properties["cpu_launcher_enable"]) == (False, False, "false")
    assert "cpu_launcher_args" not in plan.properties
    assert plan.worker_cpus == ((0, 1, 2, 3),) * 2
    assert plan.server_cpus == (0, 1, 2, 3)
    assert plan.environment["LD_PRELOAD"] == "/kit/.venv/lib/libiomp5.so:/kit/.venv/lib/libjemalloc.so"
    assert "KMP_AFFINITY" not in {**plan.environment, **plan.worker_environment}


@pytest.mark.parametrize(
    ("machine", "quota", "owned"),
    [
        ("single-socket", None, True), ("single-socket", 7.9, False), ("single-socket", 0.5, False),
        ("single-socket", 8.0, True),  # it covers all CPUs
        ("two-sockets-smt", 32.0, False),  # all cores, and half of the CPUs
        ("two-sockets-smt", 64.0, True),
        ("container-cpuset", 2.0, False),  # the shared pool of Kubernetes' static CPU manager
        ("container-cpuset", None, True), ("container-cpuset", 8.0, True),
        ("container-quota-v1", 1.5, False), ("container-quota-v1", 4.0, True),
    ],
)  # fmt: skip
def test_only_cpus_of_our_own_are_pinned(machine, quota, owned):
    topology = limit_cpus(machine, quota)
    plan = plan_one(topology)
    workers, cores = len(plan.worker_cpus), plan.cores_per_worker
    assert (topology.owns_cpus, plan.pinned) == (owned, owned)
    assert workers * cores == max(1, min(len(topology.cores), int(quota or 1e9)))
    assert plan.worker_environment["OMP_NUM_THREADS"] == str(cores)
    assert (plan.worker_cpus == (topology.cpus_allowed,) * workers) != owned
    affinity = plan.worker_environment["KMP_AFFINITY"]
    assert affinity == ("granularity=fine,compact,1,0" if owned else "none")
    # Set before the launcher, which would set its own.
    assert plan.environment.get("KMP_AFFINITY") == (None if owned else affinity)


def test_memory_is_not_bound_where_numactl_would_stop_the_worker():
    """The launcher's own probe is of node 0 alone."""
    machine = dataclasses.replace(find_machine("two-sockets-smt"), can_bind_memory=False)
    for bound, plan in ((True, plan_one("two-sockets-smt")), (False, plan_one(machine))):
        assert ("--disable_numactl" not in plan.properties["cpu_launcher_args"], plan.pinned) == (bound, True)
        assert (plan.memory_nodes[0] == (0,)) == bound


def test_where_cpus_are_shared():
    """No node or cache is a worker's own: of two nodes of 16 cores a quota of 24 would be one whole and half
    of the other. GNU's OpenMP is bound by no variable."""
    plan = plan_one(limit_cpus("two-sockets-smt", 24.0), mode="latency", openmp="gnu")
    assert (len(plan.worker_cpus), plan.cores_per_worker) == (2, 12)
    assert "KMP_AFFINITY" not in {**plan.environment, **plan.worker_environment}


@pytest.mark.parametrize(
    ("memory_mib", "workers", "cores"),
    # 65536 MiB less 4096 for HAProxy, TorchServe and reserve about 10000: how often sets of these fit
    [(20000, 2, 4), (12000, 4, 2), (8000, 4, 2), (6200, 8, 1)],
)
def test_memory_limits_workers(memory_mib, workers, cores):
    plan = plan_one("single-socket", (make_model("big", {"fp32": memory_mib - 260 - 200}),))
    assert (len(plan.worker_cpus), plan.cores_per_worker) == (workers, cores)


def test_memory_that_holds_no_worker():
    with pytest.raises(FitError, match=r"\(huge ipex fp32\): needed \d+ MiB .*, there are 22599 MiB "):
        plan_one("two-cores", (make_model("huge", {"fp32": 30000}),))
    with pytest.raises(ConfigError, match=r"WORKERS must be at most 1, which is what the memory holds"):
        plan_one("two-cores", (make_model("big", {"fp32": 12000}),), workers=2)


def test_no_pinning_is_a_baseline():
    plan = plan_one(pinning=False)
    assert (plan.launched, plan.worker_cpus) == (False, ((0, 1), (0, 1)))
    assert plan.environment["OMP_NUM_THREADS"] == "1"
