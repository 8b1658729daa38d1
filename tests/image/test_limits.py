"""The plan is made for the limits of the container: CPUs, CPU time, memory, capabilities."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from server.throttling import find_loss
from server.verify.placement import SHARED_THROTTLED_MS
from tests.image.containers import Load, own_port, read_canary, read_throttled, start_container

LOAD_SECONDS = 12
needs_two_cpus = pytest.mark.skipif(
    (os.cpu_count() or 1) < 2, reason="this machine has one CPU: nothing to share out"
)


@needs_two_cpus
def test_a_cpuset_is_all_that_is_planned_with(engine, tag, store):
    last = max(os.sched_getaffinity(0))
    arguments = ["--store", str(store), "--models", "resnet50", "--cpuset", str(last)]
    with start_container(engine, tag, "cpu-kit-test-cpuset", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.plan["layout"]["worker_cpus"]["value"] == [[last]]
        assert "verify: all " in container.run_inside("kit", "verify")
        token = container.read_token()  # made by TorchServe
        assert container.predict("resnet50", read_canary(store), token)[0] == 200


@needs_two_cpus
def test_a_quota_of_one_cpu_plans_one_thread_and_binds_nothing(engine, tag, store):
    arguments = ["--store", str(store), "--models", "resnet50", "--cpus", "1.0"]
    with start_container(engine, tag, "cpu-kit-test-quota", own_port(), arguments) as container:
        container.wait_until_healthy()
        layout = container.plan["layout"]
        assert (layout["workers_per_model"]["value"], layout["cores_per_worker"]["value"]) == (1, 1)
        assert layout["worker_cpus"]["value"] == [sorted(os.sched_getaffinity(0))]
        time.sleep(2)
        before = read_throttled(container)
        load = Load(
            container=container, model="resnet50", body=read_canary(store), token=container.read_token()
        )
        with load.running():
            time.sleep(LOAD_SECONDS)
        time.sleep(1)
        loss = find_loss(before, read_throttled(container))
        lost = f"throttled {loss.times} times, {loss.ms_per_period:.3f} ms of each period lost"
        print(f"{load.count()[200]} answers, {lost}")
        assert set(load.count()) == {200}
        assert loss.ms_per_period <= SHARED_THROTTLED_MS
        assert "verify: all " in container.run_inside("kit", "verify")


def test_too_little_memory_for_both_models_is_refused_with_the_sums(engine, tag, store):
    arguments = ["--store", str(store), "--memory", "3g"]
    with start_container(engine, tag, "cpu-kit-test-refused", own_port(), arguments) as container:
        code, last = container.wait_for_end()
        assert code == 2
        assert last["cause"].startswith(
            "config: not enough memory for one worker of each model (bert fp32, resnet50 fp32)"
        )
        assert "there are 3072 MiB" in last["cause"]


def test_with_the_capability_memory_is_bound(engine, tag, store):
    if subprocess.run(["numactl", "-m", "0", "true"], capture_output=True, check=False).returncode:
        pytest.skip("numactl -m does not work on this machine itself: its kernel has no NUMA")
    if 0 not in os.sched_getaffinity(0):
        pytest.skip("the launcher tries numactl on CPU 0, which these tests may not use")
    arguments = ["--store", str(store), "--models", "resnet50", "--workers", "1", "--bind-memory", "1"]
    with start_container(engine, tag, "cpu-kit-test-nice", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.plan["layout"]["memory_nodes"]["value"] == [[0]]
        assert "verify: all " in container.run_inside("kit", "verify")
