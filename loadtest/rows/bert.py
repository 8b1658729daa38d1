"""BERT: texts of one length against the handler with everything off, and mixed lengths against padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.bench import EVERYTHING_OFF, Bench
from loadtest.errors import LoadTestError
from loadtest.goals import Goal, faster, share_of
from loadtest.payloads import write_texts
from loadtest.rows.outcome import Outcome
from loadtest.samples import Samples, join_samples
from loadtest.servers import Server
from loadtest.sides import LocustSide, ReferenceSide
from loadtest.stats import pick
from loadtest.texts import read_token_counter, write_equal_texts, write_mixed_texts
from loadtest.turns import Turns
from loadtest.variants import vary_archive

MODEL = "bert"
INT8 = ("--precision", "int8")
SEED = 24
USERS = 64
"""Two workers with two full batches of 16 each: one computes, one waits."""
SLOW_USERS = 32
"""The same for the baselines' batches of 8 in FP32."""
SLOW_STRETCH = 2.0
"""A batch of theirs takes 2 s."""
EQUAL_TEXTS, EQUAL_TOKENS = 64, 128
MIXED_TEXTS = 512
PADDED_TOKENS = 150
"""What TorchServe's own BERT example pads every text to."""
SPIKE_FACTOR = 1.5
"""A shape that is compiled in the middle of serving was seen to cost 40 ms to 1 s; the first requests after
ready would pay for all of them."""


def measure_equal_texts(bench: Bench) -> Outcome:
    """128 tokens each: no padding anywhere."""
    count = read_token_counter(bench.store / f"{MODEL}.mar")
    texts = write_equal_texts(EQUAL_TEXTS, EQUAL_TOKENS, count, seed=SEED)
    payloads = write_texts(bench.folder / "texts-equal", texts, model=MODEL)
    kit = bench.kit("kit int8", MODEL, INT8)
    off = bench.kit("everything off", MODEL, EVERYTHING_OFF)
    limit = bench.reference("in-process int8", MODEL, INT8, payloads)
    sides = [_drive(bench, kit, payloads), _drive_slow(bench, off, payloads)]
    turns = bench.compare([*sides, ReferenceSide(reference=limit)])
    goals = [
        faster(turns[kit.name], turns[off.name], at_least=7.0),
        share_of(turns[kit.name], turns[limit.name], at_least=92.0),
    ]
    return Outcome(turns=turns, goals=goals, judged=kit.name)


def measure_mixed_texts(bench: Bench) -> Outcome:
    """Log-normal lengths: against padding to the batch's longest, and against padding all to 150."""
    count = read_token_counter(bench.store / f"{MODEL}.mar")
    texts = write_mixed_texts(MIXED_TEXTS, count, seed=SEED)
    payloads = write_texts(bench.folder / "texts-mixed", texts, model=MODEL)
    kit = bench.kit("kit int8", MODEL, INT8)
    longest = bench.kit("int8, to the longest", MODEL, [*INT8, "--off", "buckets"])
    padded = bench.kit("fp32 eager, to 150", MODEL, EVERYTHING_OFF, store=_pad_all(bench))
    limit = bench.reference("in-process int8", MODEL, INT8, payloads)
    before = {server.name: bench.describe(server) for server in (kit, longest, padded)}
    sides = [_drive(bench, kit, payloads), _drive(bench, longest, payloads)]
    sides.append(_drive_slow(bench, padded, payloads))
    turns = bench.compare([*sides, ReferenceSide(reference=limit)])
    notes = [
        describe_padding(server.name, before[server.name], bench.describe(server))
        for server in (kit, longest, padded)
    ]
    spikes, spike_goal = find_spikes(turns[kit.name])
    goals = [
        faster(turns[kit.name], turns[longest.name], at_least=2.0),
        faster(turns[kit.name], turns[padded.name], at_least=25.0),
        spike_goal,
    ]
    return Outcome(turns=turns, goals=goals, judged=kit.name, notes=[*notes, *spikes])


def _drive(bench: Bench, server: Server, payloads: Path) -> LocustSide:
    return LocustSide(server=server, payloads=payloads, users=USERS, folder=bench.folder / "locust")


def _drive_slow(bench: Bench, server: Server, payloads: Path) -> LocustSide:
    side = _drive(bench, server, payloads)
    return dataclasses.replace(side, users=SLOW_USERS, stretch=SLOW_STRETCH)


def _pad_all(bench: Bench) -> Path:
    """A store whose archive knows one length, and runs a whole batch at once."""
    folder = bench.folder / "padded-store"
    change = {"token_lengths": [PADDED_TOKENS], "tokens_per_run": PADDED_TOKENS * USERS}
    vary_archive(bench.store / f"{MODEL}.mar", folder, model=change)
    return folder


def describe_padding(name: str, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """How much of what was computed in between was padding, over all workers."""
    real, padded, runs = (
        _total(after, field) - _total(before, field) for field in ("tokens", "padded_tokens", "runs")
    )
    waste = 1 - real / padded if padded else 0.0
    return (
        f"padding of {name}: {100 * waste:.1f} % of {padded} tokens computed in {runs} runs "
        f"({padded / max(1, runs):.0f} tokens a run)"
    )


def _total(workers: Sequence[dict[str, Any]], field: str) -> int:
    try:
        return sum(int(worker["padding"][field]) for worker in workers)
    except KeyError as problem:
        raise LoadTestError(
            f"describe has no padding.{field}: the archive is of an older kit; build it again"
        ) from problem


def find_spikes(turns: Turns) -> tuple[list[str], Goal]:
    """The tail of the first requests after ready against that of the last ones."""
    all_runs = join_samples(
        [one.samples for one in (*turns.warm_up, *turns.repeats) if one.samples is not None]
    )
    first, last = all_runs.part(0, of=4), all_runs.part(3, of=4)
    lines = [
        f"closed-loop times of {len(all_runs)} requests since ready: {_list_tail(all_runs)}",
        f"  the first quarter: {_list_tail(first)}",
        f"  the last quarter:  {_list_tail(last)}",
    ]
    goal = Goal(
        what="p99.9 of the first quarter / of the last quarter",
        value=pick(first.latency, 99.9) / pick(last.latency, 99.9),
        limit=SPIKE_FACTOR,
        at_least=False,
        unit="×",
    )
    return lines, goal


def _list_tail(samples: Samples) -> str:
    figures = [f"p{percent:g} {1000 * pick(samples.latency, percent):.0f}" for percent in (50, 99, 99.9)]
    return f"{', '.join(figures)}, largest {1000 * samples.latency.max():.0f} ms"
