"""A server under a CPU quota smaller than the machine: bound nowhere, with the quota's threads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.plan import read_plan
from server.processes import find_marked
from tests.end_to_end.kit import Kit, find_port, running

ALL = os.sched_getaffinity(0)
pytestmark = pytest.mark.skipif(
    len(ALL) < 2 or len(ALL) < (os.cpu_count() or 1),
    reason="CPUs are shared only where there are two or more, and no cpuset makes some of them ours",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupKit(Kit):
    """All that is called runs in a control group."""

    group: Path

    def command(self, *arguments: str) -> list[str]:
        enter = f"echo 0 > '{self.group / 'cgroup.procs'}' && exec \"$@\""
        return ["sh", "-c", enter, "sh", *super().command(*arguments)]


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of half a CPU less than there are, of version 1 or 2."""
    root = Path("/sys/fs/cgroup")
    second = (root / "cgroup.controllers").exists()
    folder = (root if second else root / "cpu") / f"cpu-kit-test-{os.getpid()}"
    try:
        if second:
            (root / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
        quota = round((len(ALL) - 0.5) * 100_000)  # of a period of 100 ms, the kernel's default
        (folder / ("cpu.max" if second else "cpu.cfs_quota_us")).write_text(str(quota))
    except OSError as problem:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {problem}")
    yield folder
    for _ in range(50):  # the kernel counts ended processes a moment longer
        with contextlib.suppress(OSError):
            folder.rmdir()
        time.sleep(0.1 * folder.exists())


@pytest.fixture
def shared_kit(tmp_path, tiny_store, group) -> GroupKit:
    return GroupKit(group=group, port=find_port(), run_dir=tmp_path / "run", store=tiny_store)


def read_masks(pid: int) -> list[set[int]]:
    """Of each of its threads."""
    return [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]


def test_nothing_is_bound_and_a_thread_that_is_bound_is_caught(shared_kit):
    threads = len(ALL) - 1
    shared_kit.plan("tiny_image", MODE="latency")
    plan = read_plan(shared_kit.run_dir)
    instance = plan.instances["a1"]
    assert instance.models["tiny_image"].workers * instance.cores_per_worker == threads
    with running(shared_kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        processes = find_marked(shared_kit.run_dir)
        assert {"TorchServe", "worker", "launcher"} <= {process.role for process in processes}
        for process in processes:  # and HAProxy, and what stays beside them
            assert all(mask == ALL for mask in read_masks(process.pid)), process
        assert shared_kit.verify() == (0, {})
        (worker,) = shared_kit.workers("tiny_image")
        os.sched_setaffinity(worker, {min(ALL)})  # its main thread, which computes
        code, differing = shared_kit.verify()
        assert (code, set(differing)) == (1, {"CPU affinity"})
        assert [finding["pid"] for finding in differing["CPU affinity"]] == [worker]
        os.sched_setaffinity(worker, ALL)
        assert shared_kit.verify() == (0, {})
