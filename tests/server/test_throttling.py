"""Throttling is counted in the group of the process and in all above it, in both versions of cgroups."""

from __future__ import annotations

import pytest

from server.throttling import Loss, find_loss, read_throttled

STAT = "nr_periods 10\nnr_throttled {}\nthrottled_usec 5\n"


@pytest.fixture
def read(proc, tmp_path):
    """What is counted for process 7, of these lines of /proc/7/cgroup and these folders' cpu.stat."""
    folder, root = proc.add(7), tmp_path / "cgroup"

    def read(cgroup: str, **stats: str) -> list[dict[str, float]]:
        (folder / "cgroup").write_text(f"{cgroup}\n")
        for name, text in stats.items():
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name / "cpu.stat").write_text(text)
        assert read_throttled(8, proc.path, root) == {}
        return [*read_throttled(7, proc.path, root).values()]

    return read


@pytest.mark.parametrize(
    ("lines", "mount"),
    [
        ("0::/pod/app", "."),
        ("4:memory:/x\n3:cpu,cpuacct:/pod/app\n0::/", "cpu,cpuacct"),
        ("1:cpu:/pod/app", "cpu"),
    ],
)
def test_all_groups_up_to_the_root_are_read(read, lines, mount):
    counts = read(lines, **{f"{mount}/pod/app": STAT.format(2), f"{mount}/pod": STAT.format(3)})
    assert [(one["nr_throttled"], one["microseconds"]) for one in counts] == [(2, 5), (3, 5)]


def test_groups_that_do_not_count_give_nothing(read):
    assert read("0::/pod", pod="usage_usec 5\n") == []


def test_version_1_counts_nanoseconds(read):
    stat = "nr_periods 121\nnr_throttled 1\nthrottled_time 451639\n"
    (found,) = read("1:cpu:/pod", **{"cpu/pod": stat})
    assert found == {"nr_periods": 121, "nr_throttled": 1, "microseconds": pytest.approx(451.639)}


def test_only_what_came_since_counts():
    def count(periods: int, times: int, milliseconds: int) -> dict[str, float]:
        return {"nr_periods": periods, "nr_throttled": times, "microseconds": 1000 * milliseconds}

    before = {"a": count(100, 2, 10)}
    assert find_loss(before, {"a": count(200, 5, 60)}) == Loss(times=3, ms_per_period=0.5)
    assert find_loss(before, {"a": count(10, 1, 5)}) == Loss(times=1, ms_per_period=0.5)  # a new group
    assert find_loss(before, before) == find_loss({}, {}) == Loss()
