"""From kept blocks to one row for each rung: figure, ratios, verdict, doubts; nothing is measured here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.ladder.blocks import Block
from loadtest.ladder.figures import Parts, Rates, find_rate_interval, find_ratio, multiply
from loadtest.ladder.judge import describe_setting, find_setting_doubts, judge_left_out, judge_step
from loadtest.ladder.keep import Header
from loadtest.ladder.rungs import STOCK_RUNG, Rung, find_rung
from loadtest.report import describe_cpu, find_doubts
from loadtest.stats import Interval

MEASURED, REFUSED, NOT_APPLICABLE, MISSING = "measured", "refused", "does not apply", "not measured yet"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    rung: Rung
    state: str
    reason: str = ""
    """Why there is no figure."""
    rate: Interval | None = None
    to_before: Interval | None = None
    to_stock: Interval | None = None
    """Over stock as it comes; None where one in between is doubtful."""
    verdict: str = ""
    doubts: tuple[str, ...] = ()
    """Any makes it INVALID."""
    setting: str = ""
    """What was seen of its own settings, before → now."""
    agreement: Mapping[str, Any] | None = None
    users: int = 0
    cpu: str = ""

    @property
    def is_valid(self) -> bool:
        return self.state == MEASURED and not self.doubts


def make_rows(header: Header, blocks: Mapping[int, Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """(the ladder, what is left out)."""
    ladder = [_make_row(rung, header, blocks, judge_step) for rung in header.rungs]
    left_out = [_make_row(rung, header, blocks, judge_left_out) for rung in header.left_out]
    chain = Chain(header=header, blocks=blocks)
    return [replace(row, to_stock=chain.find_ratio(row.rung.name)) for row in ladder], left_out


def _make_row(rung: Rung, header: Header, blocks: Mapping[int, Mapping[str, Any]], judge: Any) -> Row:
    if rung.reason:
        return Row(rung=rung, state=NOT_APPLICABLE, reason=rung.reason)
    block = blocks.get(find_home(rung.name, header.blocks))
    if block is None:
        return Row(rung=rung, state=MISSING)
    if rung.name in block["refused"]:
        return Row(rung=rung, state=REFUSED, reason=block["refused"][rung.name])
    if rung.name not in read_rates(block):
        return Row(rung=rung, state=MISSING)
    return _measure_row(rung, header, block, judge)


def find_home(name: str, blocks: Sequence[Block]) -> int:
    """Number of the block a rung is measured in for its own sake; 0 when there is none."""
    return next((number for number, one in enumerate(blocks, 1) if name in one.new), 0)


def read_rates(block: Mapping[str, Any]) -> Rates:
    """Of all servers, by repeat."""
    return {side["name"]: [one["rate"] for one in side["repeats"]] for side in block["sides"]}


def read_parts(block: Mapping[str, Any]) -> Parts:
    """Of those servers whose turns were cut into parts."""
    sides = {side["name"]: [one.get("parts") for one in side["repeats"]] for side in block["sides"]}
    return {name: parts for name, parts in sides.items() if all(parts)}


def _measure_row(rung: Rung, header: Header, block: Mapping[str, Any], judge: Any) -> Row:
    rates, servers = read_rates(block), block["servers"]
    doubts = find_rung_doubts(rung, block)
    good = find_good(header, block)
    seen_before = servers[rung.before]["seen"] if rung.before in servers else None
    to_before = _compare(rung.name, rung.before, good, block)
    side = next(one for one in block["sides"] if one["name"] == rung.name)
    return Row(
        rung=rung,
        state=MEASURED,
        rate=None if doubts else find_rate_interval(rates, rung.name, read_parts(block)),
        to_before=to_before,
        verdict=judge(to_before) if to_before else "",
        doubts=doubts,
        setting=describe_setting(rung, servers[rung.name]["seen"], seen_before),
        agreement=servers[rung.name]["agreement"],
        users=block["users"][rung.name],
        cpu=describe_cpu(side["repeats"], cpus=block["cpus"]),
    )


def _compare(
    over: str, under: str | None, good: Collection[str], block: Mapping[str, Any]
) -> Interval | None:
    if under is None or not {over, under} <= set(good):
        return None
    return find_ratio(read_rates(block), over, under, read_parts(block))


def find_good(header: Header, block: Mapping[str, Any]) -> set[str]:
    """Servers of a block whose figures may be used."""
    rungs = {name: find_rung(header.all_rungs, name) for name in read_rates(block)}
    return {name for name, rung in rungs.items() if not find_rung_doubts(rung, block)}


def find_rung_doubts(rung: Rung, block: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings, disturbance, workers that died."""
    servers = block["servers"]
    before = servers[rung.before]["seen"] if rung.before in servers else None
    doubts = [f"INVALID: {one}" for one in find_setting_doubts(rung, servers[rung.name]["seen"], before)]
    return (*doubts, *find_machine_doubts(rung.name, block))


def is_disturbed(block: Mapping[str, Any]) -> bool:
    """Whether it is worth measuring again."""
    return any(find_machine_doubts(name, block) for name in read_rates(block))


def find_machine_doubts(name: str, block: Mapping[str, Any]) -> list[str]:
    """What was not the rung's own doing."""
    side = [one for one in block["sides"] if one["name"] == name]
    doubts = find_doubts({"sides": side, "cpus": block["cpus"]})
    if changed := block["changed_workers"][name]:
        pids = ", ".join(map(str, changed))
        doubts.append(f"INVALID: a worker died and was started again ({pids}); see its logs, measure again")
    return doubts


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Ratios to stock, over rungs that two blocks share."""

    header: Header
    blocks: Mapping[int, Mapping[str, Any]]

    def find_ratio(self, name: str) -> Interval | None:
        """By the lowest rung of its block that it stands on, and that one's own ratio."""
        block = self.blocks.get(find_home(name, self.header.blocks))
        if block is None or name == STOCK_RUNG:
            return None
        rates, known, good = read_rates(block), self._list_below(name), find_good(self.header, block)
        lowest = next((one for one in reversed(known) if one in good), None)
        if lowest is None or name not in good:
            return None
        step, rest = find_ratio(rates, name, lowest, read_parts(block)), self.find_ratio(lowest)
        if lowest == STOCK_RUNG:
            return step
        return multiply(step, rest) if rest else None

    def _list_below(self, name: str) -> list[str]:
        """The rungs it stands on, down to stock."""
        before = find_rung(self.header.all_rungs, name).before
        return [before, *self._list_below(before)] if before else []


def find_row(rows: Sequence[Row], name: str) -> Row | None:
    """None when the ladder has no such rung."""
    return next((row for row in rows if row.rung.name == name), None)


def compare_over(rows: Sequence[Row], over: str, under: str) -> float | None:
    """The ratio of two rungs of different blocks, by each one's ratio to stock."""
    first, second = find_row(rows, over), find_row(rows, under)
    if first is None or second is None or not first.to_stock or not second.to_stock:
        return None
    return first.to_stock.value / second.to_stock.value


def is_stock(row: Row) -> bool:
    return row.rung.name == STOCK_RUNG
