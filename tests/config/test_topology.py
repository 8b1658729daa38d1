"""What is read from each recorded machine, and the walk through the control groups."""

from __future__ import annotations

import os

import pytest

from config.errors import ConfigError
from config.topology import count_usable_cores, read_topology
from tests.config.planning import MACHINES

# machine: CPUs allowed, cores, usable, nodes, L3 groups, quota, memory MiB, numactl works for the launcher
TABLE = {
    "two-cores": (2, 2, 2, [0], 1, None, 24105, True),
    "single-socket": (8, 8, 8, [0], 1, None, 65536, True),
    "two-sockets-smt": (64, 32, 32, [0, 1], 2, None, 262144, True),
    "cloud-adjacent-siblings": (8, 4, 4, [0], 1, None, 32768, True),
    "sub-numa-clusters": (64, 32, 32, [0, 1, 2, 3], 2, None, 262144, True),
    "amd-l3-groups": (64, 32, 32, [0], 4, None, 262144, True),
    "interleaved-nodes": (32, 16, 16, [0, 1], 2, None, 131072, True),
    "container-cpuset": (8, 4, 4, [1], 1, None, 32768, False),
    "container-quota-v2": (8, 8, 2, [0], 1, 2.5, 16384, False),
    "container-quota-v1": (4, 4, 1, [0], 1, 1.5, 12288, False),
    "hybrid": (20, 12, 12, [0], 1, None, 65536, True),
    "offline-cpus": (8, 5, 5, [0], 1, None, 65536, True),
    "no-numa": (4, 4, 4, [0], 1, None, 16384, False),
}


@pytest.mark.parametrize("machine", TABLE)
def test_machine(machine):
    seen = read_topology(MACHINES / machine)
    assert (
        len(seen.cpus_allowed),
        len(seen.cores),
        seen.usable_cores,
        list(seen.nodes),
        len({core.l3 for core in seen.cores}),
        seen.quota_cpus,
        seen.memory_limit_mib,
        seen.launcher_numactl,
    ) == TABLE[machine]


def test_every_recorded_machine_is_in_the_table():
    assert {folder.name for folder in MACHINES.iterdir()} == set(TABLE)


def test_flags_in_the_kernels_spelling():
    assert read_topology(MACHINES / "two-cores").flags == ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")
    assert "amx_tile" in read_topology(MACHINES / "single-socket").flags


def test_derived_lscpu_numbers_cores_as_they_come():
    view = read_topology(MACHINES / "cloud-adjacent-siblings").lscpu_view
    assert view[:4] == ("0,0,0,0", "1,0,0,0", "2,1,0,0", "3,1,0,0")
    assert read_topology(MACHINES / "no-numa").lscpu_view[0] == "0,0,0,"


@pytest.mark.parametrize(
    ("cores", "quota", "usable"),
    [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (8, 100.0, 8), (8, 3.0, 3), (8, 2.9999999999, 3)],
)
def test_usable_cores(cores, quota, usable):
    assert count_usable_cores(cores, quota) == usable


def write_machine(folder, *lines):
    """The two-cores machine, with other control groups."""
    text = (MACHINES / "two-cores" / "recording.txt").read_text()
    kept = [line for line in text.splitlines() if "cgroup" not in line]
    (folder / "recording.txt").write_text("\n".join([*kept, *lines]) + "\n")
    return read_topology(folder)


V1 = "proc/self/mountinfo:32 31 0:29 {root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
V1_QUOTA = "sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us:{us}"
V1_PERIOD = "sys/fs/cgroup/cpu{group}/cpu.cfs_period_us:100000"


@pytest.mark.parametrize(
    ("lines", "quota", "usable"),
    [
        ((), None, 2),
        # a group that is not visible is read at the mount point
        (("proc/self/cgroup:3:cpu:/docker/abc", V1.format(root="/"), V1_QUOTA.format(group="", us=100000),
          V1_PERIOD.format(group="")), 1.0, 1),
        # a group outside the mounted part
        (("proc/self/cgroup:3:cpu:/../other", V1.format(root="/docker/abc"),
          V1_QUOTA.format(group="", us=50000), V1_PERIOD.format(group="")), 0.5, 1),
        # both versions are mounted: the tightest wins
        (("proc/self/cgroup:3:cpu:/a", "proc/self/cgroup:0::/b", V1.format(root="/"),
          "proc/self/mountinfo:41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
          V1_QUOTA.format(group="/a", us=190000), V1_PERIOD.format(group="/a"),
          "sys/fs/cgroup/unified/cpu.max:120000 100000"), 1.2, 1),
    ],
)  # fmt: skip
def test_quotas_of_control_groups(tmp_path, lines, quota, usable):
    seen = write_machine(tmp_path, *lines)
    assert (seen.quota_cpus, seen.usable_cores) == (quota, usable)


def test_cpuset_narrower_than_the_affinity(tmp_path):
    seen = write_machine(
        tmp_path,
        "proc/self/cgroup:0::/",
        "proc/self/mountinfo:30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw",
        "sys/fs/cgroup/cpuset.cpus.effective:1",
    )
    assert seen.cpus_allowed == (1,)
    assert not seen.launcher_numactl  # its probe uses CPU 0


def test_recorded_rejection_to_bind_memory(tmp_path):
    text = (MACHINES / "two-cores" / "recording.txt").read_text()
    rejected = text.replace("probe/membind:ok", "probe/membind:set_mempolicy: Operation not permitted")
    (tmp_path / "recording.txt").write_text(rejected)
    assert not read_topology(tmp_path).can_bind_memory


def test_not_a_machine(tmp_path):
    with pytest.raises(ConfigError, match=r"no machine below .*: sys/devices/system/cpu/online is missing"):
        read_topology(tmp_path)


def test_this_machine_can_be_read():
    seen = read_topology()
    assert set(seen.cpus_allowed) <= os.sched_getaffinity(0)
    assert 1 <= seen.usable_cores <= len(seen.cores)
