"""The servers of the ladder that are up: brought up when a block needs them, kept for the next one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.bench import Bench
from loadtest.ladder.agreement import ask, compare_answers
from loadtest.ladder.observe import observe
from loadtest.ladder.rungs import BERT, RESNET50, Rung
from loadtest.ladder.settings import FILLED, OFF, ONE_WORKER, Layout, make_arguments
from loadtest.payloads import Payload, read_list
from loadtest.servers import Server
from loadtest.stock import BATCH_SIZE, Stock, build_image_archive, build_text_archive

EXAMPLE_HANDLER = "the example's Transformer handler"


@dataclass(frozen=True, kw_only=True)
class Up:
    """One server that is up and halted."""

    rung: Rung
    server: Server
    stack: contextlib.ExitStack
    pids: tuple[int, ...]
    """Of its workers when it was ready."""
    facts: dict[str, Any]
    """Observed settings, agreement, plan and descriptions, for the result."""


@dataclass(kw_only=True)
class Fleet:
    """Brings servers up one at a time; close() takes all down."""

    bench: Bench
    model: str
    layout: Layout
    payloads: Path
    fp32: list[Any]
    """Eager FP32's answers to the first payloads."""
    each_length: Sequence[Payload] = ()
    """Sent to servers without buckets before they are measured: a length that is new to a worker costs it a
    compile, and in a turn of seconds it would meet more new ones than in any hour of serving."""
    up: dict[str, Up] = field(default_factory=dict)

    def bring(self, rung: Rung) -> Up:
        """The rung's server, started if it is not up; what it answers and does is recorded once."""
        if rung.name not in self.up:
            with contextlib.ExitStack() as stack:
                self.bench.stack, self.bench.facts = stack, {}
                server = self._start(rung)
                facts = {**self.bench.facts.get(server.name, {}), **self._record(server, rung)}
                pids = tuple(facts.pop("pids"))
                self.up[rung.name] = Up(
                    rung=rung, server=server, stack=stack.pop_all(), pids=pids, facts=facts
                )
        return self.up[rung.name]

    def keep_only(self, names: Collection[str]) -> None:
        """Take the others down, all at once: each takes seconds, in which it does little."""
        gone = [self.up.pop(name) for name in list(self.up) if name not in names]
        with ThreadPoolExecutor(max_workers=max(1, len(gone))) as stops:
            # list: an error in one of them is raised here.
            list(stops.map(lambda one: one.stack.close(), gone))

    def find_changed_workers(self, name: str) -> tuple[int, ...]:
        """Workers that are no longer those that were ready: TorchServe starts a dead one again in silence."""
        one = self.up[name]
        with one.server.resumed():
            return tuple(sorted(set(one.server.list_workers()) ^ set(one.pids)))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Fleet]:
        """Nothing stays up behind it."""
        try:
            yield self
        finally:
            self.keep_only(())

    def _start(self, rung: Rung) -> Server:
        if rung.is_stock:
            return self.bench.stock(make_stock(rung, self.model), archive=f"{self.model}.mar", name=rung.name)
        return self.bench.kit(rung.name, self.model, make_arguments(rung.settings, self.layout))

    def _settle(self, server: Server, rung: Rung) -> None:
        if rung.is_stock or rung.settings.buckets != OFF:
            return
        for _ in range(count_passes(len(server.list_workers()))):
            ask(server, self.payloads, self.each_length)

    def _record(self, server: Server, rung: Rung) -> dict[str, Any]:
        sample = read_list(self.payloads)[: len(self.fp32)]
        with server.resumed():
            answers = ask(server, self.payloads, sample)
            self._settle(server, rung)
            seen = observe(server, () if rung.is_stock else server.describe_workers())
            pids = server.list_workers()
        agreement = compare_answers(answers, self.fp32)
        return {
            "pids": pids,
            "seen": {item: dataclasses.asdict(one) for item, one in seen.items()},
            "agreement": dataclasses.asdict(agreement),
            "verified": None if rung.is_stock else "by its start: every check of `make verify` was good",
        }


def count_passes(workers: int) -> int:
    """Requests go to whichever worker is free: with so many passes most lengths have been to each."""
    return 1 if workers == 1 else workers + 1


def make_stock(rung: Rung, model: str) -> Stock:
    """TorchServe's own way to serve the model, with the rung's sizes where they are not the defaults."""
    asked = BATCH_SIZE if rung.settings.batches == FILLED else 1
    how = {
        RESNET50: ("image_classifier", build_image_archive),
        BERT: (EXAMPLE_HANDLER, build_text_archive),
    }
    handler, build = how[model]
    batch_size = asked if rung.settings.workers == ONE_WORKER else None
    return Stock(model=model, handler=handler, build=build, batch_size=batch_size)
