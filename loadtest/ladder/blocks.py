"""Cuts the ladder into blocks: servers that are up together and take turns, so that they can be compared.

A block has with each rung the one it is compared with; that one is carried over from the block before.
Halted servers keep their memory, so blocks are as large as that allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.errors import LoadTestError
from loadtest.ladder.rungs import Rung

MOST_SERVERS = 6
"""More would lie minutes apart within one repeat."""
USABLE_MEMORY = 0.8
"""Of what is available: page cache and the load generator need some too."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Names of rungs."""

    members: tuple[str, ...] = ()
    """All that are measured."""
    new: tuple[str, ...] = ()
    """Those that are measured for their own sake; the others are there to be compared with."""

    def grow(self, rung: Rung) -> Block:
        """With one more, and what it is compared with."""
        wanted = [name for name in (rung.before, rung.name) if name and name not in self.members]
        return Block(members=(*self.members, *wanted), new=(*self.new, rung.name))


def cut_blocks(rungs: Sequence[Rung], memory_mib: Callable[[str], int], available_mib: float) -> list[Block]:
    """In the rungs' order, each block as large as it may be; what does not apply is left out."""
    limit = USABLE_MEMORY * available_mib
    blocks: list[Block] = []
    for rung in rungs:
        if rung.reason:
            continue
        grown = blocks[-1].grow(rung) if blocks else None
        if grown and _fits(grown, memory_mib, limit):
            blocks[-1] = grown
            continue
        blocks.append(Block().grow(rung))
        _check_fits(blocks[-1], memory_mib, limit)
    return blocks


def _fits(block: Block, memory_mib: Callable[[str], int], limit: float) -> bool:
    return len(block.members) <= MOST_SERVERS and sum(map(memory_mib, block.members)) <= limit


def _check_fits(block: Block, memory_mib: Callable[[str], int], limit: float) -> None:
    needed = sum(map(memory_mib, block.members))
    if needed > limit:
        raise LoadTestError(
            f"{', '.join(block.members)} must be up together and need {needed} MiB: "
            f"got {limit:.0f} MiB that may be used; end other programs"
        )
