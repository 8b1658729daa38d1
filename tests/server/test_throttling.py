"""Throttling is counted in the group of the process and in all above it, in both versions of cgroups."""

from __future__ import annotations

import pytest

from server.throttling import count_since, read_throttled


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
    assert sorted(read_throttled(7, proc.path, root).values()) == [2, 3]


def test_groups_that_do_not_count_give_nothing(proc, tmp_path):
    proc.add(7)
    (proc.path / "7" / "cgroup").write_text("0::/pod\n")
    folder = tmp_path / "cgroup" / "pod"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("usage_usec 5\n")
    assert read_throttled(7, proc.path, tmp_path / "cgroup") == {}
    assert read_throttled(8, proc.path, tmp_path / "cgroup") == {}


def test_only_what_came_since_counts():
    assert count_since({"a": 2}, {"a": 5, "b": 1}) == 4
    assert count_since({"a": 9}, {"a": 1}) == 0  # a new group under the same name
