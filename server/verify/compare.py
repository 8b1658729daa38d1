"""Compares the plan with the live server: collects, then goes through the table, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from config.plan import Plan
from server.archives import read_archives_left
from server.rundir import RunDir
from server.verify.collect import SeenInstance, SeenProxy, Unknown, collect_instance, collect_proxy
from server.verify.rows import INSTANCE, MODEL, PROXY, ROWS, TRY_AGAIN, WORKER, Planned, Row, show

PASSED, DIFFERS, NOT_CHECKABLE = "passed", "DIFFERS", "not checkable"
"""The last where a value cannot be read and no difference follows from that."""
NO_ANSWER = "unknown: no answer to describe"
"""The actual value of rows that need the worker's own account."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of the table, of one thing."""

    instance: str = ""  # empty: of HAProxy
    model: str | None = None  # `name/version` where it has several; None: of HAProxy, or of a whole instance
    pid: int | None = None  # None: of no single worker
    name: str
    state: str
    expected: str
    actual: str
    source: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """All findings: of HAProxy, of each instance, of its models and their workers."""

    rows: tuple[Finding, ...]

    @property
    def differences(self) -> list[Finding]:
        return [one for one in self.rows if one.state == DIFFERS]

    @property
    def good(self) -> bool:
        return not self.differences

    def by_row(self) -> dict[str, bool]:
        """Row → whether nothing differs in it."""
        differing = {one.name for one in self.differences}
        return {one.name: one.name not in differing for one in self.rows}


def compare(plan: Plan, proxy: SeenProxy | None, instances: Mapping[str, SeenInstance]) -> Result:
    """All rows of what was seen."""
    rows = [*_go_through(PROXY, Planned(plan=plan), [proxy])] if proxy else []
    for name, seen in instances.items():
        own = plan.instances[name]
        rows += _go_through(INSTANCE, Planned(plan=plan, name=name, instance=own), [seen], instance=name)
        for one in seen.models:
            planned = Planned(plan=plan, name=name, instance=own, model=own.models[one.name])
            label = f"{one.name}/{one.version}" if len(planned.model.archives) > 1 else one.name
            for scope, things in ((MODEL, [one]), (WORKER, one.workers)):
                rows += _go_through(scope, planned, things, instance=name, model=label)
    return Result(rows=tuple(rows))


def _go_through(scope: str, planned: Planned, things: Sequence[Any], **about: Any) -> Iterator[Finding]:
    for row in ROWS:
        if row.scope == scope and (not planned.model or row.kit in (None, planned.model.kit)):
            for seen in things:
                if row.always or seen.running:
                    yield _compare(row, planned, seen, **about)


def _compare(row: Row, p: Planned, seen: Any, **about: Any) -> Finding:
    fix, source = row.fix(seen) if callable(row.fix) else row.fix, row.source
    if row.describe and not p.model.kit:
        source = "/proc/PID/maps, /proc/PID/environ"
    if row.describe and p.model.kit and isinstance(seen.describe, str):
        excused = isinstance(seen.describe, Unknown)
        expected, actual, *good = "as planned", seen.describe if excused else NO_ANSWER
        fix, source = TRY_AGAIN if excused else "see describe", "describe"
    else:
        expected, actual, *good = row.look(p, seen)
    expected, text = show(expected), show(actual)
    passed = good[0] if good else text == expected
    return Finding(
        **about, pid=getattr(seen, "pid", None), name=row.name,
        state=PASSED if passed else NOT_CHECKABLE if isinstance(actual, Unknown) else DIFFERS,
        expected=expected, actual=text, source=source, fix="" if passed else fix,
    )  # fmt: skip


def verify(plan: Plan, run: RunDir) -> Result:
    """HAProxy and all instances as they are now; instances at the same time, since most of it is waiting for
    workers to describe themselves."""
    archives = read_archives_left(plan)
    with ThreadPoolExecutor(max_workers=1 + len(plan.instances)) as pool:
        proxy = pool.submit(collect_proxy, plan, run)
        seen = {name: pool.submit(collect_instance, plan, name, run, archives) for name in plan.instances}
        return compare(plan, proxy.result(), {name: one.result() for name, one in seen.items()})


def verify_instance(plan: Plan, name: str, run: RunDir) -> Result:
    """One instance; `run` is the server's."""
    return compare(plan, None, {name: collect_instance(plan, name, run, read_archives_left(plan))})
