"""Throttling is counted in the group of the process and in all above it, in both versions of cgroups."""

from __future__ import annotations

import pytest

from server.throttling import Loss, find_loss, read_throttled


def write_stat(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(f"nr_periods 10\nnr_throttled {count}\nthrottled_usec 5\n")


@pytest.mark.parametrize(
    ("lines", "mount"),
    [
        ("0::/pod/app", "."),
        ("4:memory:/x\n3:cpu,cpuacct:/pod/app\n0::/", "cpu,cpuacct"),
        ("1:cpu:/pod/app", "cpu"),
    ],
)
def test_all_groups_up_to_the_root_are_read(proc, tmp_path, lines, mount):
    proc.add(7)
    (proc.path / "7" / "cgroup").write_text(lines + "\n")
    root = tmp_path / "cgroup"
    write_stat(root / mount / "pod" / "app", 2)
    write_stat(root / mount / "pod", 3)
    counts = read_throttled(7, proc.path, root).values()
    assert sorted(one["nr_throttled"] for one in counts) == [2, 3]
    assert [one["microseconds"] for one in counts] == [5, 5]


def test_groups_that_do_not_count_give_nothing(proc, tmp_path):
    proc.add(7)
    (proc.path / "7" / "cgroup").write_text("0::/pod\n")
    folder = tmp_path / "cgroup" / "pod"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("usage_usec 5\n")
    assert read_throttled(7, proc.path, tmp_path / "cgroup") == {}
    assert read_throttled(8, proc.path, tmp_path / "cgroup") == {}


def test_version_1_counts_nanoseconds(proc, tmp_path):
    proc.add(7)
    (proc.path / "7" / "cgroup").write_text("1:cpu:/pod\n")
    folder = tmp_path / "cgroup" / "cpu" / "pod"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("nr_periods 121\nnr_throttled 1\nthrottled_time 451639\n")
    (found,) = read_throttled(7, proc.path, tmp_path / "cgroup").values()
    assert found == {"nr_periods": 121, "nr_throttled": 1, "microseconds": pytest.approx(451.639)}


def count(periods, times, milliseconds):
    return {"nr_periods": periods, "nr_throttled": times, "microseconds": 1000 * milliseconds}


def test_only_what_came_since_counts():
    before = {"a": count(100, 2, 10)}
    assert find_loss(before, {"a": count(200, 5, 60)}) == Loss(times=3, ms_per_period=0.5)
    assert find_loss(before, {"a": count(10, 1, 5)}) == Loss(times=1, ms_per_period=0.5)  # a new group
    assert find_loss(before, before) == Loss()
    assert find_loss({}, {}) == Loss()
