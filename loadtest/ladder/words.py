"""A ladder's tables and sentences, from its folder alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadtest.ladder.keep import Header
from loadtest.ladder.rows import MEASURED, MISSING, NOT_APPLICABLE, REFUSED, Row, is_stock
from loadtest.ladder.rungs import BERT, RESNET50
from loadtest.pages.tables import INVALID, NONE, Table
from loadtest.stats import Interval

NAMES = {RESNET50: "ResNet50", BERT: "BERT"}
PUBLISHED = {RESNET50: 7.71, BERT: 2.20}
"""pytorch.org/tutorials/intermediate/torchserve_with_ipex.html."""
VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
NEAR_ONE = (0.9, 1.1)
WIDTHS = (("avx512f", "AVX-512"), ("avx2", "AVX2"))
HEADER = ("rung", "requests/s", "95 % interval", "to the rung before", "to stock", "verdict",
          "labels as FP32", "largest difference", "users")  # fmt: skip
LEFT_OUT_HEADER = ("the top …", "requests/s", "95 % interval", "to the top", "verdict", "labels as FP32",
                   "largest difference")  # fmt: skip


def describe_machine(machine: Mapping[str, Any]) -> str:
    """`a 2-core AVX-512 virtual machine (AMD, 23 GiB)`."""
    width = next((name for flag, name in WIDTHS if flag in machine["flags"]), "x86-64")
    kind = "virtual machine" if machine["virtual"] else "machine"
    vendor = VENDORS.get(machine["vendor"], machine["vendor"])
    return f"a {machine['usable_cores']}-core {width} {kind} ({vendor}, {machine['memory_gib']} GiB)"


def make_ladder_table(header: Header, rows: Sequence[Row]) -> Table:
    """One line for each rung."""
    return Table(
        title=f"Ladder of {NAMES[header.model]}",
        note="Each rung is one server with one setting more than the rung before, over REST. "
        "Ratios come from turns seconds apart in one block. A rung in brackets has none standing on it.",
        header=HEADER,
        rows=tuple(_make_cells(row) for row in rows),
    )


def _make_cells(row: Row) -> tuple[str, ...]:
    label = f"({row.rung.label})" if row.rung.side else row.rung.label
    if row.state != MEASURED:
        return (label, *[NONE] * 4, describe_absence(row), *[NONE] * 3)
    if row.doubts:
        return (label, INVALID, *[NONE] * 3, INVALID, *_show_agreement(row), str(row.users))
    return (
        label,
        *show_rate(row.rate),
        show_ratio(row.to_before),
        "1" if is_stock(row) else show_ratio(row.to_stock),
        row.verdict or NONE,
        *_show_agreement(row),
        str(row.users),
    )


def make_left_out_table(rows: Sequence[Row]) -> Table:
    """One line for each setting."""
    return Table(
        title="Left out",
        note="The top with one setting taken away; below 1 the setting is worth having.",
        header=LEFT_OUT_HEADER,
        rows=tuple(_make_left_out_cells(row) for row in rows if row.state != NOT_APPLICABLE),
    )


def _make_left_out_cells(row: Row) -> tuple[str, ...]:
    if row.state == MISSING:
        return (row.rung.label, *[NONE] * 3, MISSING, *[NONE] * 2)
    if row.state == REFUSED:
        return (row.rung.label, *[NONE] * 3, "cannot be left out", *[NONE] * 2)
    if row.doubts:
        return (row.rung.label, INVALID, *[NONE] * 2, INVALID, *_show_agreement(row))
    return (
        row.rung.label,
        *show_rate(row.rate),
        show_ratio(row.to_before),
        row.verdict or NONE,
        *_show_agreement(row),
    )


def describe_absence(row: Row) -> str:
    return f"{row.state}: {row.reason}" if row.reason else row.state


def show_rate(rate: Interval | None) -> tuple[str, str]:
    if rate is None:
        return NONE, NONE
    digits = 1 if rate.value >= 10 else 2
    return f"{rate.value:.{digits}f}", f"{rate.low:.{digits}f}-{rate.high:.{digits}f}"


def show_ratio(ratio: Interval | None) -> str:
    """`2.31× (2.25-2.37)`; near 1 with a digit more, as it is compared with 1."""
    if ratio is None:
        return NONE
    digits = 3 if NEAR_ONE[0] < ratio.value < NEAR_ONE[1] else 2
    return f"{ratio.value:.{digits}f}× ({ratio.low:.{digits}f}-{ratio.high:.{digits}f})"


def _show_agreement(row: Row) -> tuple[str, str]:
    found = row.agreement
    if found is None:
        return NONE, NONE
    return f"{found['same']} of {found['judged']}", f"{found['largest_difference']:.4f}"


def list_findings(ladder: Sequence[Row], left_out: Sequence[Row]) -> Iterator[str]:
    """What a reader must be told in words: what does not help, what is refused, what is doubtful."""
    for row in (*ladder, *left_out):
        if row.state == REFUSED:
            what = "cannot be left out" if row in left_out else "cannot be served here"
            yield f"{row.rung.label}: {what}: {row.reason}"
        yield from (f"{row.rung.label}: {doubt}" for doubt in row.doubts)


def make_settings_table(rows: Sequence[Row]) -> Table:
    """What was seen of each rung's own setting."""
    return Table(
        title="Seen in the live servers",
        note="Of each rung's own setting: on the rung it is compared with → on this one.",
        header=("rung", "seen"),
        rows=tuple((row.rung.label, row.setting) for row in rows if row.setting),
    )


def make_cpu_table(rows: Sequence[Row]) -> Table:
    """What bounds each rung."""
    return Table(
        title="Where the CPU time went",
        note="Shares of all CPUs while under load.",
        header=("rung", "CPU time"),
        rows=tuple((row.rung.label, row.cpu) for row in rows if row.cpu),
    )


def describe_targets(targets: Mapping[str, Any]) -> list[str]:
    """Whether the top agrees with `make targets`."""
    if not targets:
        return []
    return [_describe_figure(one) for one in targets["figures"]]


def _describe_figure(one: Mapping[str, Any]) -> str:
    here, there = (f"{one[side]:.4g}{one['unit']}" for side in ("ladder", "targets"))
    source = f"`make targets` ({one['row']}, {one['time']})"
    return f"{one['what']}: {here} here, {there} in {source}: {one['difference']:+.1%}"
