"""Each fault is planted on purpose in a real server, and verify must see it; nothing else may be blamed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from config.plan import read_plan
from models.build import build_archive
from server.rundir import RunDir
from tests.conftest import RANDOM, TINY_IMAGE, write_definition
from tests.cpu import needs_bf16
from tests.end_to_end.kit import Kit, running


def pin_threads(pid: int, cpus: set[int]) -> None:
    """What `taskset -a -p` does."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a worker can only be moved where there are two CPUs"
)
def test_a_worker_moved_after_the_start_is_caught_and_healed(kit):
    first, second = kit.workers("resnet50")[:2]
    own = os.sched_getaffinity(first)
    pin_threads(first, os.sched_getaffinity(second))
    try:
        code, differing = kit.verify()
        assert code == 1
        assert "CPU affinity" in differing or "ranks" in differing
        assert all(finding["fix"] for findings in differing.values() for finding in findings)
    finally:
        pin_threads(first, own)
    assert kit.verify() == (0, {})


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a thread can only be moved where there are two CPUs"
)
def test_a_single_thread_moved_is_caught(kit):
    worker = kit.workers("bert")[0]
    own = os.sched_getaffinity(worker)
    thread = max(int(entry.name) for entry in Path(f"/proc/{worker}/task").iterdir())
    os.sched_setaffinity(thread, os.sched_getaffinity(0))
    try:
        code, differing = kit.verify()
        assert code == 1
        assert [finding["pid"] for finding in differing["CPU affinity"]] == [worker]
    finally:
        os.sched_setaffinity(thread, own)
    assert kit.verify() == (0, {})


def test_a_stopped_worker_is_caught_not_skipped(kit):
    """While its supervisor, which would end it, is stopped too."""
    worker, supervisor = kit.workers("bert")[0], kit.find("supervisor")[0].pid
    for pid in (supervisor, worker):
        os.kill(pid, signal.SIGSTOP)
    try:
        code, differing = kit.verify()
        assert code == 1
        assert worker in [finding["pid"] for finding in differing["describe"]]
    finally:
        for pid in (worker, supervisor):
            os.kill(pid, signal.SIGCONT)
    kit.wait_until_good()


def test_another_archive_in_the_store_is_caught(tiny_kit, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    shutil.copy(tiny_kit.store / "tiny_image.mar", store)
    kit = Kit(run_dir=tiny_kit.run_dir, store=store, port=tiny_kit.port)
    kit.plan("tiny_image")
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        changed = write_definition(tmp_path / "models", {**TINY_IMAGE, "batch_sizes": [1, 2]})
        build_archive(changed, RANDOM, store=store)
        code, differing = kit.verify()
        assert code == 1
        # The workers' copy is neither of the new archive's id nor made of its files.
        assert set(differing) == {"archive", "archive files"}


def start_with(kit: Kit, precision: str = "fp32", **changes: str) -> set[str]:
    """Plan, change config.properties behind the plan's back, start; the rows that verify finds to differ."""
    kit.plan("tiny_image", PRECISION=precision)
    kit.change_properties(**changes)
    with running(kit) as started:
        assert started.returncode == 1, "verify at the end of start must fail:\n" + started.stdout
        assert "the live server differs from the plan" in started.stderr
        assert "fix:" in started.stderr
        return {*re.findall(r"^ +\| .*: (.+) DIFFERS$", started.stderr, re.MULTILINE)}


def test_lost_allocator_settings_ipex_off_and_gnu_openmp_are_caught(tiny_kit):
    tiny_kit.plan("tiny_image")
    arguments = tiny_kit.read_property("cpu_launcher_args") + " --disable_iomp"
    differing = start_with(
        tiny_kit, blacklist_env_vars="MALLOC_CONF", ipex_enable="false", cpu_launcher_args=arguments
    )
    assert {"allocator options", "environment", "OpenMP"} <= differing
    assert not {"precision", "allocator", "workers", "channels_last"} & differing


def test_a_backend_that_fell_back_is_caught(tiny_kit):
    """Without the plan's options and with the switch off, PyTorch alone computes."""
    changes = {"blacklist_env_vars": "CPU_KIT_OPTIONS", "ipex_enable": "false"}
    differing = start_with(tiny_kit, **changes)
    assert {"backend", "graph", "environment"} <= differing
    assert not {"precision", "channels_last", "allocator"} & differing


def test_no_launcher_no_pinning_no_allocator_is_caught(tiny_kit):
    differing = start_with(tiny_kit, cpu_launcher_enable="false")
    assert {"CPU affinity", "allocator", "OpenMP", "environment"} <= differing
    assert not {"precision", "backend", "graph"} & differing


@needs_bf16
def test_wrong_precision_system_allocator_and_unbound_memory_are_caught(tiny_kit):
    tiny_kit.plan("tiny_image", PRECISION="bf16")
    arguments = tiny_kit.read_property("cpu_launcher_args").replace(
        "--enable_jemalloc", "--use_default_allocator --disable_numactl"
    )
    bound = read_plan(tiny_kit.run_dir).instances["a1"].memory_nodes[0] is not None
    differing = start_with(
        tiny_kit, "bf16", blacklist_env_vars="CPU_KIT_OPTIONS", cpu_launcher_args=arguments
    )
    assert {"precision", "allocator"} <= differing
    # Where memory cannot be bound (no NUMA, no CAP_SYS_NICE), the plan does not ask for it.
    assert ("memory policy" in differing) == bound
    assert not {"backend", "OpenMP", "graph", "channels_last"} & differing


def test_a_lost_library_link_is_caught(tiny_kit, tmp_path):
    # The launcher looks in $VIRTUAL_ENV/lib; TorchServe drops the variable, as a wrong unit file would.
    differing = start_with(tiny_kit, blacklist_env_vars="VIRTUAL_ENV")
    assert {"allocator", "OpenMP"} <= differing
    assert not {"precision", "backend", "graph"} & differing


def kill_launcher(worker: int) -> None:
    """The worker's parent."""
    stat = Path(f"/proc/{worker}/stat").read_text()
    os.kill(int(stat[stat.rindex(")") + 2 :].split()[1]), signal.SIGKILL)


OPENED = {
    "max_request_size": "33554432",
    "max_response_size": "33554432",
    "allowed_urls": "file://.*",
    "job_queue_size": "7",
}


def test_what_protects_is_seen_to_be_gone(tiny_kit):
    """A TCP port instead of a socket, larger requests, another heap."""
    tiny_kit.plan("tiny_image")
    elsewhere = f"http://127.0.0.2:{tiny_kit.port + 11}"
    flags = tiny_kit.read_property("vmargs") + " -Xmx8g"
    models = tiny_kit.read_property("models").replace('"maxBatchDelay":1,', '"maxBatchDelay":30,')
    differing = start_with(tiny_kit, metrics_address=elsewhere, vmargs=flags, models=models, **OPENED)
    items = "addresses, sockets, request size, response size, allowed_urls, queue, JVM flags"
    assert differing == {*items.split(", "), "batch", "config.properties"}


def test_an_open_model_api_is_seen(tiny_kit):
    assert start_with(tiny_kit, enable_model_api="true") == {"model API", "config.properties"}


def test_a_worker_ends_with_its_launcher_and_another_takes_its_place(tiny_server):
    worker = tiny_server.workers("tiny_image")[0]
    kill_launcher(worker)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
    tiny_server.wait_until_good()


def test_an_unpacked_file_changed_after_the_start_is_seen(tiny_server):
    (file,) = RunDir.at(tiny_server.instance).temporary.glob("models/*/requirements.txt")
    unpacked = file.read_bytes()
    file.write_bytes(unpacked + b" ")
    try:
        code, differing = tiny_server.verify()
    finally:
        file.write_bytes(unpacked)
    assert (code, set(differing)) == (1, {"archive files"})
    assert differing["archive files"][0]["actual"].startswith("requirements.txt has sha256 ")
    assert tiny_server.verify() == (0, {})
