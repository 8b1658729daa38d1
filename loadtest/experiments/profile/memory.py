"""Where a process's memory lies: /proc/PID/numa_maps (numa(7)), beside the nodes of the CPUs it ran on.

What giving memory back costs shows in minor faults: it is faulted in again, page by page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from config.files import parse_id_list
from server.processes import PROC

NODES = Path("/sys/devices/system/node")
_PAGES = re.compile(r"\bN(\d+)=(\d+)")
_PAGE_KIB = re.compile(r"\bkernelpagesize_kB=(\d+)")


def parse_numa_maps(text: str) -> dict[int, float]:
    """Node → MiB of the process's own memory there: mappings without a file, whatever their page size."""
    found: Counter[int] = Counter()
    for line in text.splitlines():
        size = _PAGE_KIB.search(line)
        if " file=" in line or not size:
            continue
        for node, pages in _PAGES.findall(line):
            found[int(node)] += int(pages) * int(size[1])
    return {node: round(kib / 1024, 1) for node, kib in sorted(found.items())}


def read_numa_mib(pid: int, proc: Path = PROC) -> dict[int, float] | None:
    """None where the kernel has no numa_maps, or does not let us read it."""
    try:
        return parse_numa_maps((proc / str(pid) / "numa_maps").read_text())
    except OSError:
        return None


def read_nodes(folder: Path = NODES) -> dict[int, int]:
    """CPU → its NUMA node; empty where the kernel knows none."""
    lists = {file.parent: file.read_text() for file in folder.glob("node[0-9]*/cpulist")}
    return {
        cpu: int(node.name.removeprefix("node"))
        for node, text in lists.items()
        for cpu in parse_id_list(text)
    }


def find_remote_share(
    mib_by_node: Mapping[int, float], cpus: Collection[int], nodes: Mapping[int, int]
) -> float | None:
    """Of the memory, what lies on a node that none of these CPUs is of; None where nothing tells."""
    own, every = {nodes[cpu] for cpu in cpus if cpu in nodes}, sum(mib_by_node.values())
    if not own or not every:
        return None
    return sum(mib for node, mib in mib_by_node.items() if node not in own) / every
