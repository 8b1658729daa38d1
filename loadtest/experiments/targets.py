"""`make targets`: what the kit gains over its baselines, row by row; an INVALID system gives no figure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.results.kept import Kept
from loadtest.results.ratios import find_ratio, take_parts, take_rates
from loadtest.results.trial import KeptBlock, Series
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.systems.fleet import Member
from loadtest.systems.inprocess import in_process
from loadtest.systems.kit import kit, saturate
from loadtest.systems.stock import stock
from loadtest.systems.system import System
from loadtest.trials.block import Block, Experiment, Timing, Turn, Verdict
from loadtest.trials.validity import find_doubts
from server.archives import read_archive

KIND = "targets"
TIMEOUT_S = 120
TIMING = Timing(seconds=10.0, warm_up_s=4.0, repeats=3)
RESNET50, BERT = "resnet50", "bert"
USERS, SLOW_USERS = 64, 32
"""Two workers with two full batches of 16 each, one computed and one waiting; a baseline's batch of 32."""
SLOW_STRETCH = 2
"""Windows of a baseline are so many times as long and judged in so many parts: a batch takes 2 s."""
EVERYTHING_OFF = (
    *("--precision", "fp32", "--backend", "eager", "--no-pinning"),
    *("--allocator", "system", "--openmp", "gnu"),
    *("--off", "channels_last,trace,freeze,packing"),
)
"""Eager FP32 with the handler's own preprocessing, and the lengths that texts were padded to before."""
PHOTO = "one 500×375 photograph as JPEG a request"
PADDED_TOKENS = 150
"""What TorchServe's own BERT example pads every text to."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    model: str
    payloads: str
    members: tuple[Member, ...]
    served: str
    """The member whose rate is told as a ratio to each of the others."""
    users: int = USERS
    slow: str = ""
    """The member that is a slow baseline."""


def count_fill(described: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Over all workers, since they were ready."""
    every, counts = list(described), ("tokens", "computed_tokens", "runs")
    return {name: sum(int(one["fill"][name]) for one in every) for name in counts}


def look_at_fill(system: System) -> Mapping[str, Any]:
    """Behind the last trial; what was before stands in the workers' own accounts."""
    return {"fill": count_fill(system.describe_workers(BERT))}


def switch_off(model: str) -> tuple[str, ...]:
    """Arguments of the baseline that is the kit's own, in full batches."""
    return (*EVERYTHING_OFF, *saturate(model, "fp32"))


def _in_process(model: str, precision: str) -> Member:
    return in_process(f"in-process {model} {precision}", model, _ask(model, precision))


def _ask(model: str, precision: str) -> tuple[str, ...]:
    return ("--precision", precision, *saturate(model, precision))


def _make_photo_row(precision: str) -> Row:
    """Against plain TorchServe, and what the handler reaches without a server."""
    plain = stock("stock TorchServe", RESNET50, batch_size=32)
    served = kit(f"kit {RESNET50} {precision}", RESNET50, _ask(RESNET50, precision))
    return Row(
        name=f"{RESNET50}-{precision}",
        title=f"ResNet50 {precision.upper()} over REST, {PHOTO}",
        model=RESNET50,
        payloads="one-photo",
        members=(plain, served, _in_process(RESNET50, precision)),
        served=served.name,
        slow=plain.name,
    )


def _make_equal_row() -> Row:
    served = kit("kit bert int8", BERT, _ask(BERT, "int8"))
    off = kit("kit bert, everything off", BERT, switch_off(BERT))
    return Row(
        name="bert-128",
        title="BERT INT8 over REST, one text of 128 tokens a request",
        model=BERT,
        payloads="texts-128",
        members=(off, served, _in_process(BERT, "int8")),
        served=served.name,
        slow=off.name,
    )


def _make_mixed_row() -> Row:
    """Against a row for each text, padding to the batch's longest, and padding all to 150."""
    how = _ask(BERT, "int8")
    served = kit("kit bert int8", BERT, how)
    buckets = kit("kit bert int8, buckets", BERT, (*how, "--off", "packing"))
    longest = kit("kit bert int8, to the longest", BERT, (*how, "--off", "packing,buckets"))
    one_length = {
        "token_lengths": [PADDED_TOKENS],
        "row_tokens": PADDED_TOKENS,
        "tokens_per_run": PADDED_TOKENS * USERS,
    }
    padded = kit("kit bert fp32 eager, to 150", BERT, switch_off(BERT), archive=one_length)
    counted = (replace(one, inspect_after=look_at_fill) for one in (padded, served, buckets, longest))
    return Row(
        name="bert-mixed",
        title="BERT INT8 over REST, mixed lengths (log-normal, median 24 tokens, at most 512)",
        model=BERT,
        payloads="texts-mixed",
        members=(*counted, _in_process(BERT, "int8")),
        served=served.name,
        slow=padded.name,
    )


def _make_latency_row() -> Row:
    """Against batches of one in-process, on the same CPUs and threads: of one user the ratio of the rates is
    that of the latencies."""
    how = ("--precision", "int8", "--profile", "latency")
    served = kit("kit resnet50 int8, latency", RESNET50, how)
    return Row(
        name="resnet50-latency",
        title=f"ResNet50 INT8, PROFILE=latency, one request at a time, {PHOTO}",
        model=RESNET50,
        payloads="one-photo",
        members=(served, in_process("in-process resnet50 int8, latency", RESNET50, how)),
        users=1,
        served=served.name,
    )


ROWS = (
    *(_make_photo_row(precision) for precision in ("int8", "bf16", "fp32")),
    _make_equal_row(),
    _make_mixed_row(),
    _make_latency_row(),
)


def check_targets(timing: Timing) -> None:
    """Judges what was asked for; LoadTestError says what may be."""
    if not timing.seconds >= 1:
        raise LoadTestError(f"DURATION must be at least 1: got {timing.seconds:g}")


def make_experiment(store: Path, timing: Timing) -> Experiment:
    """Of all rows."""
    check_targets(timing)
    models = dict.fromkeys(row.model for row in ROWS)
    asked = {
        "timing": dataclasses.asdict(timing),
        "archives": {model: read_archive(store / f"{model}.mar").archive_id for model in models},
    }
    return Experiment(
        kind=KIND,
        name=KIND,
        asked=asked,
        next_block=lambda kept: next(
            (make_block(row, timing) for row in ROWS if kept.find(row.name) is None), None
        ),
    )


def make_block(row: Row, timing: Timing) -> Block:
    turns = tuple(make_turn(member, row, timing) for member in row.members)
    return Block(name=row.name, turns=turns, repeats=timing.repeats, warm_up_s=timing.warm_up_s)


def make_turn(member: Member, row: Row, timing: Timing) -> Turn:
    """A closed loop in whole rounds: the first one is left out, as queues fill, and two are the least."""
    users, stretch = (SLOW_USERS, SLOW_STRETCH) if member.name == row.slow else (row.users, 1)
    scenario = Scenario(
        name=row.name,
        model=row.model,
        payloads=row.payloads,
        arrival=Arrival(loop="closed"),
        steps=(users,),
        warm_up_s=0.0,
        duration_s=stretch * timing.seconds,
        repeats=timing.repeats,
        timeout_s=TIMEOUT_S,
        leave_out_first_round=True,
        least_rounds=2,
        parts=stretch,
    )
    return Turn(member=member, scenario=scenario, level=users)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is kept of one block."""

    valid: Mapping[str, Series]
    gaps: Mapping[str, str]
    """System → why it gives no figure."""


def look_at(kept: Kept, block: KeptBlock | None) -> Seen:
    """None of a row that is not measured yet."""
    series = {one.system: one for one in kept.list_series(block)} if block else {}
    doubts = {name: "; ".join(map(str, find_doubts(one))) for name, one in series.items()}
    refused = block.refused if block else {}
    gaps = {name: text for name, text in doubts.items() if text}
    gaps |= {name: f"the kit refuses {name}: {reason}" for name, reason in refused.items()}
    valid = {name: one for name, one in series.items() if name not in gaps}
    return Seen(valid=valid, gaps=gaps)


def judge(kept: Kept) -> list[Verdict]:
    """The ratio of each row's server to each of the others; without a figure, why there is none."""
    return [
        judge_ratio(row.name, row.served, one.name, look_at(kept, kept.find(row.name)))
        for row in ROWS
        for one in row.members
        if one.name != row.served
    ]


def judge_ratio(row: str, served: str, other: str, seen: Seen) -> Verdict:
    """A refused or doubtful side gives none."""
    what = f"{row}: {served} / {other}"
    for name in (served, other):
        if name not in seen.valid:
            return Verdict(what=what, why=seen.gaps.get(name, f"{name} is not measured yet"))
    block = list(seen.valid.values())
    return Verdict(
        what=what, figure=find_ratio(take_rates(block), served, other, take_parts(block)), unit="×"
    )


def find_alone(series: Series) -> tuple[float, float] | None:
    """(part of the time inside the model, requests a second by the model alone); None of a server."""
    shares = [one.model_share for one in series.trials if one.model_share]
    if not shares:
        return None
    share = statistics.mean(shares)
    return share, statistics.median(series.turn_rates) / share
