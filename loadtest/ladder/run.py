"""Runs a ladder block by block; what is finished is kept at once, and the rest can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from loadtest.bench import Bench
from loadtest.cpu import count_cpus
from loadtest.errors import RefusedError
from loadtest.ladder.blocks import Block
from loadtest.ladder.fleet import Fleet
from loadtest.ladder.keep import Header, count_tries, keep_block, name_block, read_blocks
from loadtest.ladder.progress import START_SECONDS, Progress
from loadtest.ladder.rows import is_disturbed
from loadtest.ladder.rungs import find_rung
from loadtest.ladder.settings import Layout
from loadtest.ladder.side import RungSide, make_side
from loadtest.payloads import Payload
from loadtest.results import pack_turns
from loadtest.turns import take_turns

LEAST_SIDES = 2
"""One server alone can be compared with nothing."""


@dataclass(kw_only=True)
class Ladder:
    """One run; `folder` is where it is kept."""

    bench: Bench
    header: Header
    folder: Path
    payloads: Path
    layout: Layout
    each_length: Sequence[Payload]
    progress: Progress
    _warm: set[str] = field(default_factory=set)
    """Servers that are up and have been measured."""

    def run(self) -> None:
        """All blocks that are not there yet, and those that were disturbed."""
        self.bench.report = self.progress.report
        done, blocks = find_done(self.folder, self.header), self.header.blocks
        fleet = Fleet(
            bench=self.bench,
            model=self.header.model,
            layout=self.layout,
            payloads=self.payloads,
            fp32=list(self.header.facts["fp32"]),
            each_length=self.each_length,
        )
        with fleet.opened():
            for number, block in enumerate(blocks, start=1):
                if number in done:
                    continue
                self.progress.report(f"block {number} of {len(blocks)}: {', '.join(block.members)}")
                keep_block(self.folder, number, self._measure(fleet, number, block))

    def _measure(self, fleet: Fleet, number: int, block: Block) -> dict[str, Any]:
        began = datetime.now(timezone.utc)
        fleet.keep_only(block.members)
        self._warm &= set(fleet.up)
        refused = self._bring(fleet, block.members)
        sides = [self._make_side(fleet, name) for name in block.members if name in fleet.up]
        timing, report = self.bench.timing, self.bench.report
        turns = take_turns(sides, timing, report, warm=self._warm) if len(sides) >= LEAST_SIDES else {}
        self._warm |= set(turns)
        prefix = name_block(number, count_tries(self.folder, number) + 1).removesuffix(".json")
        return {
            "time": began.isoformat(timespec="seconds"),
            "seconds": (datetime.now(timezone.utc) - began).total_seconds(),
            "cpus": count_cpus(),
            "refused": refused,
            "servers": {name: fleet.up[name].facts for name in turns},
            "changed_workers": {name: fleet.find_changed_workers(name) for name in turns},
            "users": {side.name: side.locust.users for side in sides},
            "sides": [pack_turns(self.folder, prefix, one) for one in turns.values()],
        }

    def _make_side(self, fleet: Fleet, name: str) -> RungSide:
        one = fleet.up[name]
        return make_side(
            one.rung, one.server, self.payloads, self.bench.folder / "locust", self.progress.add_turn
        )

    def _bring(self, fleet: Fleet, names: Sequence[str]) -> dict[str, str]:
        """Start what is not up; what the kit refuses, with its reason."""
        refused = {}
        for name in (one for one in names if one not in fleet.up):
            try:
                facts = fleet.bring(find_rung(self.header.all_rungs, name)).facts
                self.progress.report(f"  {name}: {describe_agreement(facts['agreement'])}")
            except RefusedError as problem:
                refused[name] = " ".join(problem.reason.split())
                self.progress.report(f"  {name}: the kit refuses: {refused[name]}")
            self.progress.add(START_SECONDS[self.header.model])
        return refused


def find_done(folder: Path, header: Header) -> set[int]:
    """Blocks that are finished and were not disturbed."""
    blocks = read_blocks(folder, header)
    return {number for number, block in blocks.items() if not is_disturbed(block)}


def describe_agreement(agreement: Mapping[str, Any]) -> str:
    """`32 of 32 labels as FP32, largest probability difference 0.0012`."""
    return (
        f"{agreement['same']} of {agreement['judged']} labels as FP32, "
        f"largest probability difference {agreement['largest_difference']:.2g}"
    )
