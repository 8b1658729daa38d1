"""How a rung is brought up, and what is looked at before it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from config.plan import Layout
from loadtest.experiments.ladder.observe import observe
from loadtest.experiments.ladder.rungs import Rung
from loadtest.experiments.ladder.settings import FILLED, OFF, ONE_WORKER, make_arguments
from loadtest.payloads import Payload
from loadtest.systems.fleet import Member
from loadtest.systems.kit import kit
from loadtest.systems.stock import BATCH_SIZE, stock
from loadtest.systems.system import System
from server.activity import read_anonymous_mib

AT_ONCE = 16
OWN_MIB = "own_mib"
"""In SystemFacts.seen, beside the settings."""


def make_member(rung: Rung, model: str, layout: Layout, each_length: Sequence[Payload] = ()) -> Member:
    """`each_length` is sent to servers without buckets before they are measured.

    A length that is new to a worker costs it a compile, and in a turn of seconds it would meet more new ones
    than in any hour of serving.
    """

    def inspect(system: System) -> Mapping[str, Any]:
        if not rung.is_stock and rung.settings.buckets == OFF:
            passes = count_passes(len(system.list_workers(model)))
            system.ask([*each_length] * passes, at_once=AT_ONCE)
        return {item: asdict(one) for item, one in observe(system, model).items()}

    if rung.is_stock:
        return replace(stock(rung.name, model, batch_size=find_stock_batch_size(rung)), inspect=inspect)
    served = kit(rung.name, model, make_arguments(rung.settings, layout, model))
    return replace(served, inspect=inspect, inspect_after=lambda system: see_memory(system, model))


def see_memory(system: System, model: str) -> Mapping[str, Any]:
    """What is each worker's alone, as no file's: libraries and mapped weights are there once for all."""
    return {OWN_MIB: [read_anonymous_mib(pid) for pid in system.list_workers(model)]}


def find_stock_batch_size(rung: Rung) -> int | None:
    """None where the sizes are TorchServe's own."""
    if rung.settings.workers != ONE_WORKER:
        return None
    return BATCH_SIZE if rung.settings.batches == FILLED else 1


def count_passes(workers: int) -> int:
    """Requests go to whichever worker is free: with so many passes most lengths have been to each."""
    return 1 if workers == 1 else workers + 1
