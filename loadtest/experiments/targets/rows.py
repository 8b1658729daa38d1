"""The rows of the table of speed targets, as data: who takes turns under which load, and what is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.errors import LoadTestError
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
RATIO, SHARE, MEDIAN, TAIL, SPIKES, START = "ratio", "share", "p50", "p99", "spikes", "start"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One figure that is judged."""

    kind: str
    """Ratios and shares (in percent) must reach the limit, all others must not exceed it."""
    limit: float
    """Of p50 and p99 a factor to what they are compared with."""
    system: str
    other: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    """Rows of one name are asked for together."""
    title: str
    model: str
    payloads: str
    members: tuple[Member, ...]
    goals: tuple[Goal, ...]
    users: int = USERS
    slow: str = ""
    """The member that is a slow baseline."""

    @property
    def starts_only(self) -> bool:
        """Nothing is compared: each system comes up alone, if no other row has started it."""
        return all(goal.kind == START for goal in self.goals)


def list_rows(names: Sequence[str] = ()) -> list[Row]:
    """Those that are named, in the table's order, or all; LoadTestError says which there are."""
    known = dict.fromkeys(row.name for row in ROWS)
    for name in names:
        if name not in known:
            raise LoadTestError(f"TARGET must be one of {', '.join(known)}: got {name}")
    return [row for row in ROWS if not names or row.name in names]


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


def _make_photo_row(precision: str, *, at_least: float, of_the_limit: float | None = None) -> Row:
    """Against plain TorchServe; the limit is shown, and judged where a share of it is asked for."""
    plain = stock("stock TorchServe", RESNET50, batch_size=32)
    served, limit = _kit(RESNET50, precision), _in_process(RESNET50, precision)
    goals = [Goal(kind=RATIO, limit=at_least, system=served.name, other=plain.name)]
    if of_the_limit is not None:
        goals.append(Goal(kind=SHARE, limit=of_the_limit, system=served.name, other=limit.name))
    return Row(
        name=f"{RESNET50}-{precision}",
        title=f"ResNet50 {precision.upper()} over REST, {PHOTO}",
        model=RESNET50,
        payloads="one-photo",
        members=(plain, served, limit),
        slow=plain.name,
        goals=tuple(goals),
    )


def _make_equal_row() -> Row:
    served, limit = _kit(BERT, "int8"), _in_process(BERT, "int8")
    off = kit("kit bert, everything off", BERT, switch_off(BERT))
    return Row(
        name="bert-128",
        title="BERT INT8 over REST, one text of 128 tokens a request",
        model=BERT,
        payloads="texts-128",
        members=(off, served, limit),
        slow=off.name,
        goals=(
            Goal(kind=RATIO, limit=7.0, system=served.name, other=off.name),
            Goal(kind=SHARE, limit=92.0, system=served.name, other=limit.name),
        ),
    )


def _make_mixed_row() -> Row:
    """Against a row for each text, padding to the batch's longest, and padding all to 150."""
    # Not the other row's name, so that it is started for this one: spikes are counted from ready on.
    how = _ask(BERT, "int8")
    served = kit("kit bert int8, new", BERT, how)
    buckets = kit("kit bert int8, buckets", BERT, (*how, "--off", "packing"))
    longest = kit("kit bert int8, to the longest", BERT, (*how, "--off", "packing,buckets"))
    one_length = {
        "token_lengths": [PADDED_TOKENS],
        "row_tokens": PADDED_TOKENS,
        "tokens_per_run": PADDED_TOKENS * USERS,
    }
    off = switch_off(BERT)
    padded = kit("kit bert fp32 eager, to 150", BERT, off, archive=one_length)
    counted = (replace(one, inspect_after=look_at_fill) for one in (padded, served, buckets, longest))
    return Row(
        name="bert-mixed",
        title="BERT INT8 over REST, mixed lengths (log-normal, median 24 tokens, at most 512)",
        model=BERT,
        payloads="texts-mixed",
        members=(*counted, _in_process(BERT, "int8")),
        slow=padded.name,
        goals=(
            Goal(kind=RATIO, limit=1.35, system=served.name, other=buckets.name),
            Goal(kind=RATIO, limit=2.0, system=served.name, other=longest.name),
            Goal(kind=RATIO, limit=28.0, system=served.name, other=padded.name),
            # A shape that is compiled in the middle of serving was seen to cost 40 ms to 1 s.
            Goal(kind=SPIKES, limit=1.1, system=served.name),
        ),
    )


def _make_latency_row() -> Row:
    """Against batches of one in-process, on the same CPUs and threads."""
    how = ("--precision", "int8", "--profile", "latency")
    served = kit("kit resnet50 int8, latency", RESNET50, how)
    alone = in_process("in-process resnet50 int8, latency", RESNET50, how)
    return Row(
        name="resnet50-latency",
        title=f"ResNet50 INT8, PROFILE=latency, one request at a time, {PHOTO}",
        model=RESNET50,
        payloads="one-photo",
        members=(served, alone),
        users=1,
        goals=(
            Goal(kind=MEDIAN, limit=1.15, system=served.name, other=alone.name),
            Goal(kind=TAIL, limit=1.5, system=served.name),
        ),
    )


def _make_load_row(model: str, payloads: str) -> Row:
    members = tuple(_kit(model, precision) for precision in ("fp32", "bf16", "int8"))
    return Row(
        name="load",
        title=f"Load time: the kit with {model} alone, to all shapes warmed and checked",
        model=model,
        payloads=payloads,
        members=members,
        users=1,
        goals=tuple(Goal(kind=START, limit=25.0, system=one.name) for one in members),
    )


# `load` comes last: it takes over the starts that the others have made.
ROWS = (
    _make_photo_row("int8", at_least=12.0, of_the_limit=95.0),
    _make_photo_row("bf16", at_least=6.5),
    _make_photo_row("fp32", at_least=3.3),
    _make_equal_row(),
    _make_mixed_row(),
    _make_latency_row(),
    _make_load_row(RESNET50, "one-photo"),
    _make_load_row(BERT, "one-text"),
)
