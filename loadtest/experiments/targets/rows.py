"""The rows of `make targets`, as data: who takes turns under which load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from loadtest.systems.fleet import Member
from loadtest.systems.inprocess import in_process
from loadtest.systems.kit import kit, saturate
from loadtest.systems.stock import stock
from loadtest.systems.system import System

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


def _kit(model: str, precision: str) -> Member:
    return kit(f"kit {model} {precision}", model, _ask(model, precision))


def _in_process(model: str, precision: str) -> Member:
    return in_process(f"in-process {model} {precision}", model, _ask(model, precision))


def _ask(model: str, precision: str) -> tuple[str, ...]:
    return ("--precision", precision, *saturate(model, precision))


PHOTO = "one 500×375 photograph as JPEG a request"


def _make_photo_row(precision: str) -> Row:
    """Against plain TorchServe, and what the handler reaches without a server."""
    plain = stock("stock TorchServe", RESNET50, batch_size=32)
    served = _kit(RESNET50, precision)
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
    served, off = _kit(BERT, "int8"), kit("kit bert, everything off", BERT, switch_off(BERT))
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
