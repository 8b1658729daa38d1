"""Compares the plan with the live server: collects, then goes through the table, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from config.plan import Plan
from server.archives import read_archives_left
from server.rundir import RunDir
from server.verify.collect import SeenInstance, SeenProxy, Unknown, collect_instance, collect_proxy
from server.verify.judge import Planned
from server.verify.rows import INSTANCE, MODEL, PROXY, ROWS, TRY_AGAIN, WORKER, Row

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
    def good(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def differences(self) -> list[Finding]:
        """Those that differ."""
        return [one for one in self.rows if one.state == DIFFERS]


def compare(plan: Plan, proxy: SeenProxy | None, instances: Mapping[str, SeenInstance]) -> Result:
    """All rows of what was seen."""
    rows = list(_compare_all(PROXY, Planned(plan=plan), proxy)) if proxy else []
    for name, seen in instances.items():
        own = plan.instances[name]
        rows += _compare_all(INSTANCE, Planned(plan=plan, name=name, instance=own), seen, instance=name)
        for one in seen.models:
            model = own.models[one.name]
            label = f"{one.name}/{one.version}" if len(model.archives) > 1 else one.name
            planned = Planned(plan=plan, name=name, instance=own, model=model)
            rows += _compare_all(MODEL, planned, one, instance=name, model=label)
            for row in ROWS:
                for worker in one.workers if row.scope == WORKER else ():
                    # Nothing else can be said of a process that is gone.
                    if row.name == "process" or worker.thread_cpus is not None:
                        rows += _compare_row(row, planned, worker, instance=name, model=label, pid=worker.pid)
    return Result(rows=tuple(rows))


def _compare_all(scope: str, planned: Planned, seen: Any, **about: Any) -> Iterator[Finding]:
    for row in ROWS:
        if row.scope == scope and (row.always or getattr(seen, "running", True)):
            yield from _compare_row(row, planned, seen, **about)


def _compare_row(row: Row, p: Planned, seen: Any, **about: Any) -> Iterator[Finding]:
    """Nothing where the row is not about such archives."""
    if p.model and row.kit not in (None, p.model.kit):
        return
    fix, source = row.fix(p, seen) if callable(row.fix) else row.fix, row.source
    if row.describe and not p.model.kit:
        source = "/proc/PID/maps, /proc/PID/environ"
    if row.describe and p.model.kit and isinstance(seen.describe, str):
        excused = isinstance(seen.describe, Unknown)
        expected, actual, good = "as planned", seen.describe if excused else NO_ANSWER, None
        fix, source = TRY_AGAIN if excused else "see describe", "describe"
    elif row.judge:
        expected, actual, good = row.judge(p, seen)
    else:
        expected = row.expected(p) if callable(row.expected) else row.expected
        actual, good = row.actual(p, seen), None  # type: ignore[misc]
    good = expected == actual if good is None else good
    state = PASSED if good else NOT_CHECKABLE if isinstance(actual, Unknown) else DIFFERS
    yield Finding(**about, name=row.name, state=state, expected=expected, actual=str(actual), source=source,
                  fix="" if good else fix)  # fmt: skip


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
