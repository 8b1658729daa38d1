"""The model of the launcher against the launcher itself, where torch is installed."""

from __future__ import annotations

import argparse
import os
import sys
from unittest import mock

import pytest

from config.planning.launcher import LauncherError, simulate_launcher
from handlers.backends.catalogue import DEFAULT_SET, find_set
from tests.config.planning import ALL_MACHINES, find_machine, plan_machine

SET = find_set()
COUNTS = pytest.mark.skipif(SET != DEFAULT_SET, reason="torch 2.14's launcher does not count by itself")
ADJACENT = find_machine("cloud-adjacent-siblings").lscpu_view


def launch_really(run_cpu, arguments: str, view, *, workers: int, rank: int, numactl: bool):
    """(command, OMP_NUM_THREADS) of the processes the real launcher would start; nothing is started."""
    parser = argparse.ArgumentParser()
    run_cpu.create_args(parser)
    of_torchserve = ["--ninstances", str(workers), "--rank", str(rank)] if workers > 1 else []
    options = parser.parse_args([*arguments.split(" "), *of_torchserve, "worker.py"])
    options.log_path = os.devnull
    launcher = object.__new__(run_cpu._Launcher)
    launcher.cpuinfo = run_cpu._CPUinfo(test_input="\n".join(view))
    launcher.is_numactl_available = lambda: numactl
    with mock.patch.dict(os.environ, clear=True), mock.patch.object(run_cpu, "start_processes") as start:
        launcher.launch(options)
        set_for_all = os.environ.get("OMP_NUM_THREADS")
    commands = start.call_args.kwargs
    threads = set_for_all or commands["envs"][0]["OMP_NUM_THREADS"]  # torch 2.14 sets it for each
    return [[commands["entrypoint"], *arguments] for arguments in commands["args"].values()], int(threads)


def expand(ranges: str) -> list[int]:
    """What numactl and taskset make of "0-1,4-4"."""
    pairs = (part.split("-") for part in ranges.split(","))
    return [cpu for first, last in pairs for cpu in range(int(first), int(last) + 1)]


@pytest.mark.parametrize("mode", ["throughput", "latency"])
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_the_real_launcher_does_what_is_planned(machine, mode, instances):
    """Whichever torch is there: its own package set's plan."""
    run_cpu = pytest.importorskip("torch.backends.xeon.run_cpu")
    topology = find_machine(machine)
    if instances > topology.usable_cores:
        return
    for plan in plan_machine(machine, mode=mode, instances=instances, package_set=SET).instances.values():
        if not plan.launched:
            with pytest.raises(ValueError, match="invalid literal for int"):
                run_cpu._CPUinfo(test_input="\n".join(topology.lscpu_view))
            return
        for rank, cpus in enumerate(plan.worker_cpus):
            commands, threads = launch_really(
                run_cpu, plan.properties["cpu_launcher_args"], topology.lscpu_view,
                workers=len(plan.worker_cpus), rank=rank, numactl=topology.launcher_numactl,
            )  # fmt: skip
            (command,) = commands
            assert threads == plan.cores_per_worker
            if not plan.pinned:
                assert command == [sys.executable, "-u", "worker.py"]
                continue
            nodes = plan.memory_nodes[rank]
            assert command[0] == ("taskset" if nodes is None else "numactl")
            assert expand(command[2]) == list(cpus)
            assert nodes is None or command[3:5] == ["-m", ",".join(map(str, nodes))]


LISTED = "--core_list 0,2,4,6 --ncores_per_instance"


@pytest.mark.parametrize(
    ("args", "workers", "numactl"),
    [
        ("--node_id 0", 1, True),
        ("--node_id 0", 4, True),
        ("--node_id 0", 3, False),
        ("--core_list 6,0,2,4 --ncores_per_instance 1", 4, True),
        pytest.param(f"{LISTED} 2", 1, True, marks=COUNTS),
        (f"{LISTED} 4 --ninstances 1", 1, True),
        (f"{LISTED} 1", 2, True),
        (f"{LISTED} 4 --ninstances 1 --disable_numactl", 1, True),
        ("--ncores_per_instance 2 --disable_numactl --disable_taskset", 2, True),
        ("--ncores_per_instance 3 --ninstances 1 --disable_numactl --disable_taskset", 1, True),
    ],
)
def test_model_and_launcher_agree(args, workers, numactl):
    run_cpu = pytest.importorskip("torch.backends.xeon.run_cpu")
    model = simulate_launcher(args, ADJACENT, workers=workers, numactl=numactl)
    for rank, one in enumerate(model):
        commands, threads = launch_really(
            run_cpu, args, ADJACENT, workers=workers, rank=rank, numactl=numactl
        )
        assert (len(commands), threads) == (one.copies, one.threads)
        if not one.cpus:
            assert commands[0][0] == sys.executable
            continue
        assert expand(commands[0][2]) == list(one.cpus)
        assert (commands[0][0] == "numactl") == (one.nodes is not None)


def test_node_id_takes_core_numbers_for_cpus_and_one_digit_of_a_node_is_read():
    """The trap: on a cloud machine cores 0-3 are CPUs 0, 2, 4, 6, but CPUs 0-3 are handed out."""
    (launched,) = simulate_launcher("--node_id 0", ADJACENT, workers=1, numactl=True)
    assert launched.cpus == (0, 1, 2, 3)
    view, args = [f"{cpu},{cpu},0,{cpu}" for cpu in range(12)], "--core_list 11 --ncores_per_instance 1"
    (launched,) = simulate_launcher(args, view, workers=1, numactl=True)
    assert launched.nodes == (1,)


@pytest.mark.parametrize(
    ("args", "view", "message"),
    [
        ("--node_id 0", ["0,0,0,"], "lscpu is missing or shows no NUMA node"),
        ("--node_id 0", [], "lscpu is missing or shows no NUMA node"),
        ("--node_id 2", ["0,0,0,0"], "no node 2"),
        ("--core_list 7 --ncores_per_instance 1", ["0,0,0,0"], "lscpu does not list all of CPUs"),
    ],
)
def test_where_the_launcher_stops(args, view, message):
    with pytest.raises(LauncherError, match=message):
        simulate_launcher(args, view, workers=1, numactl=True)
