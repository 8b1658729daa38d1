"""Cuts the ladder into blocks: servers that are up together and take turns, so that they can be compared.

A block has with each rung the one it is compared with; that one is carried over from the block before.
Halted servers keep their memory, so blocks are as large as that allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.plan import Layout
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.rungs import Rung
from loadtest.experiments.ladder.settings import ONE_WORKER

MOST_SERVERS = 6
"""More would lie minutes apart within one repeat."""
USABLE_MEMORY = 0.8
"""Of what is available: page cache and the load generator need some too."""
SERVER_MIB = 700
"""Of TorchServe's Java and the launchers, beside the workers."""
OWN_SHARE = 0.8
"""Of a worker's resident set; the rest are libraries that all workers share (seen)."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rungs that are measured in one block."""

    name: str
    """Of the block, by the first rung that is measured for its own sake: each is so in one block alone."""
    members: tuple[str, ...] = ()

    def grow(self, rung: Rung) -> Group:
        """With one more, and what it is compared with."""
        wanted = [name for name in (rung.before, rung.name) if name and name not in self.members]
        return Group(name=self.name, members=(*self.members, *wanted))


def cut_groups(rungs: Sequence[Rung], memory_mib: Callable[[str], int], available_mib: float) -> list[Group]:
    """In the rungs' order, each as large as it may be; what does not apply is left out."""
    limit = USABLE_MEMORY * available_mib
    groups: list[Group] = []
    for rung in rungs:
        if rung.reason:
            continue
        grown = groups[-1].grow(rung) if groups else None
        if grown and _fits(grown, memory_mib, limit):
            groups[-1] = grown
            continue
        groups.append(Group(name=f"from-{rung.name}").grow(rung))
        _check_fits(groups[-1], memory_mib, limit)
    return groups


def _fits(group: Group, memory_mib: Callable[[str], int], limit: float) -> bool:
    return len(group.members) <= MOST_SERVERS and sum(map(memory_mib, group.members)) <= limit


def _check_fits(group: Group, memory_mib: Callable[[str], int], limit: float) -> None:
    needed = sum(map(memory_mib, group.members))
    if needed > limit:
        raise LoadTestError(
            f"{', '.join(group.members)} must be up together and need {needed} MiB: "
            f"got {limit:.0f} MiB that may be used; end other programs"
        )


def estimate_memory(rung: Rung, memory_mib: Mapping[str, int], layout: Layout) -> int:
    """Of its server, by what the definition says of a worker of each precision."""
    workers = 1 if rung.settings.workers == ONE_WORKER else layout.workers_per_model.value
    return SERVER_MIB + round(workers * OWN_SHARE * memory_mib[rung.settings.precision])


def read_available_mib(meminfo: Path = Path("/proc/meminfo")) -> float:
    """What can be used without swapping."""
    lines = meminfo.read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:"))
