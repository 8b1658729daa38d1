"""The model of the launcher against the launcher itself, where torch is installed."""

from __future__ import annotations

import argparse
import os
import sys
from unittest import mock

import pytest

from config.rules.pinning import LauncherArgs, LauncherError, simulate_launcher
from config.topology import read_topology
from handlers.backends.catalogue import DEFAULT_SET, find_set
from tests.config.planning import MACHINES, plan_machine

ALL_MACHINES = sorted(folder.name for folder in MACHINES.iterdir())
SET = find_set()
COUNTS = pytest.mark.skipif(SET != DEFAULT_SET, reason="torch 2.14's launcher does not count by itself")
ADJACENT = read_topology(MACHINES / "cloud-adjacent-siblings").lscpu_view


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


@pytest.mark.parametrize("profile", ["throughput", "latency"])
@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_the_real_launcher_does_what_is_planned(machine, profile):
    """Whichever torch is there: its own package set's plan."""
    run_cpu = pytest.importorskip("torch.backends.xeon.run_cpu")
    plan = plan_machine(machine, profile=profile, package_set=SET)
    topology = read_topology(MACHINES / machine)
    if plan.properties["cpu_launcher_enable"].value == "false":
        with pytest.raises(ValueError, match="invalid literal for int"):
            run_cpu._CPUinfo(test_input="\n".join(topology.lscpu_view))
        return
    workers = plan.layout.workers_per_model.value
    for rank in range(workers):
        commands, threads = launch_really(
            run_cpu,
            plan.properties["cpu_launcher_args"].value,
            topology.lscpu_view,
            workers=workers,
            rank=rank,
            numactl=topology.launcher_numactl,
        )
        assert len(commands) == 1
        command = commands[0]
        assert threads == plan.layout.cores_per_worker.value
        if not plan.pinned:
            assert command == [sys.executable, "-u", "worker.py"]
            continue
        nodes = plan.layout.memory_nodes.value[rank]
        assert command[0] == ("taskset" if nodes is None else "numactl")
        assert expand(command[2]) == plan.layout.worker_cpus.value[rank]
        assert nodes is None or command[3:5] == ["-m", ",".join(map(str, nodes))]


@pytest.mark.parametrize(
    ("args", "workers", "numactl"),
    [
        (LauncherArgs(node_id=0), 1, True),
        (LauncherArgs(node_id=0), 4, True),
        (LauncherArgs(node_id=0), 3, False),
        (LauncherArgs(node_id=0, cores_per_instance=2), 2, True),
        pytest.param(LauncherArgs(node_id=0, cores_per_instance=2), 1, True, marks=COUNTS),
        (LauncherArgs(), 2, True),
        (LauncherArgs(core_list=(6, 0, 2, 4), cores_per_instance=1), 4, True),
        pytest.param(LauncherArgs(core_list=(0, 2, 4, 6), cores_per_instance=2), 1, True, marks=COUNTS),
        (LauncherArgs(core_list=(0, 2, 4, 6), cores_per_instance=4, instances=1), 1, True),
        (LauncherArgs(core_list=(0, 2, 4, 6), cores_per_instance=1), 2, True),
        (
            LauncherArgs(core_list=(0, 2, 4, 6), cores_per_instance=4, instances=1, disable_numactl=True),
            1,
            True,
        ),
    ],
)
def test_model_and_launcher_agree(args, workers, numactl):
    run_cpu = pytest.importorskip("torch.backends.xeon.run_cpu")
    for rank in range(workers):
        rendered = args.render() or "--rank -1"
        commands, threads = launch_really(
            run_cpu, rendered, ADJACENT, workers=workers, rank=rank, numactl=numactl
        )
        model = simulate_launcher(args, ADJACENT, workers=workers, rank=rank, numactl_works=numactl)
        assert (len(commands), threads) == (model.instances, model.omp_num_threads)
        assert expand(commands[0][2]) == list(model.cpus)
        assert (commands[0][0] == "numactl") == (model.memory_nodes is not None)


def test_node_id_takes_core_numbers_for_cpus():
    """The trap: on a cloud machine cores 0-3 are CPUs 0, 2, 4, 6, but CPUs 0-3 are handed out."""
    launched = simulate_launcher(LauncherArgs(node_id=0), ADJACENT, workers=1, rank=0, numactl_works=True)
    assert launched.cpus == (0, 1, 2, 3)


def test_only_the_first_digit_of_a_node_is_read():
    view = [f"{cpu},{cpu},0,{cpu}" for cpu in range(12)]
    args = LauncherArgs(core_list=(11,), cores_per_instance=1)
    assert simulate_launcher(args, view, workers=1, rank=0, numactl_works=True).memory_nodes == (1,)


@pytest.mark.parametrize(
    ("args", "view", "message"),
    [
        (LauncherArgs(node_id=0), ["0,0,0,"], "lscpu is missing or shows no NUMA node"),
        (LauncherArgs(node_id=0), [], "lscpu is missing or shows no NUMA node"),
        (LauncherArgs(node_id=2), ["0,0,0,0"], "no node 2"),
        (LauncherArgs(core_list=(0,)), ["0,0,0,0"], "--core_list needs --ncores_per_instance"),
        (LauncherArgs(core_list=(7,), cores_per_instance=1), ["0,0,0,0"], "lscpu does not list all of CPUs"),
    ],
)
def test_where_the_launcher_stops(args, view, message):
    with pytest.raises(LauncherError, match=message):
        simulate_launcher(args, view, workers=1, rank=0, numactl_works=True)
