"""`make chaos`: one fault after the other under an open loop, each watched until all is well again."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from loadtest.drivers.records import Records
from loadtest.errors import LoadTestError
from loadtest.experiments.chaos import load
from loadtest.experiments.chaos.evidence import EMPTY, keep_evidence, list_missing, make_rows
from loadtest.experiments.chaos.registry import DEADLINE_MS, Fault, choose
from loadtest.experiments.chaos.row import Evidence, Look, Row, make_row
from loadtest.experiments.chaos.stage import (
    HAPROXY,
    MODEL,
    NONE,
    PATIENCE_S,
    PORTS,
    PRECISION,
    NotDoneError,
    Stage,
    open_stage,
)
from loadtest.experiments.chaos.watched import watching
from loadtest.results.kept import Kept, start_result
from loadtest.results.stats import Interval
from loadtest.systems.fleet import Site
from loadtest.trials.block import Verdict
from server.archives import read_archive
from server.errors import ServerError

KIND = "chaos"
CALM_S = 4.0
"""Of load before the fault."""
LEAST_S = 6.0
"""Of load after it, however well all is."""
TAIL_S = 2.0
"""Of load after all is well."""
LAST_BEGIN_S = {HAPROXY: 11.5 * 60, NONE: 13.5 * 60}
"""Front → when its last fault may begin, so that all ends within 15 minutes and overload has both figures;
what there is no time for is named. A stop is short, and has to be anyway."""
STEP_S = 0.25


def check_chaos(names: Sequence[str]) -> None:
    """Judges what was asked for; LoadTestError says what may be."""
    choose(names)


def run_chaos(site: Site, *, results: Path, names: Sequence[str] = ()) -> Kept:
    """Each row is kept as soon as it is known, whatever becomes of the next one."""
    faults = choose(names)
    asked = {
        "faults": [f"{fault.name} ({fault.front})" for fault in faults],
        "model": MODEL,
        "precision": PRECISION,
        "archive": read_archive(site.store / f"{MODEL}.mar").archive_id,
    }
    kept = start_result(KIND, KIND, asked, results)
    site.say(f"results and logs: {kept.folder}")
    # In the result's folder: the server's logs are evidence.
    chaos = Chaos(kept=kept, site=dataclasses.replace(site, folder=kept.folder))
    for front in (HAPROXY, NONE):
        chaos.run([fault for fault in faults if fault.front == front], front)
    return kept


@dataclass(kw_only=True)
class Chaos:
    """One run of the experiment."""

    kept: Kept
    site: Site
    began: float = field(default_factory=time.monotonic)
    peak: float = 0.0
    starts: int = 0
    done: int = 0

    def run(self, faults: Sequence[Fault], front: str) -> None:
        """All faults of one front; the server is started anew where one was lost."""
        left = list(faults)
        while left:
            with self._open(left, front) as stage:
                self.peak = self.peak or self._find_peak(stage)
                while left:
                    self._do_next(stage, left.pop(0))
                    if left and self._has_time(left[0]) and not stage.watched.wait_until_full(PATIENCE_S):
                        self.site.say("  the server is not whole again: it is started anew")
                        break

    def _open(self, left: Sequence[Fault], front: str) -> contextlib.AbstractContextManager[Stage]:
        self.site.say(f"[{self._passed()}] starting a server, FRONT={front}")
        self.starts += 1
        return open_stage(
            self.site,
            front,
            name=f"server-{self.starts}-{front}",
            port=self.site.first_port + self.starts * PORTS,
            volume=any(fault.needs_volume for fault in left),
            clock=any(fault.needs_clock for fault in left),
        )

    def _find_peak(self, stage: Stage) -> float:
        users = stage.system.auto_users(MODEL)
        peak = load.find_peak(stage.target, users=users, deadline_ms=DEADLINE_MS)
        self.site.say(f"[{self._passed()}] peak: {peak:.1f} requests/s of {users} users")
        return peak

    def _has_time(self, fault: Fault) -> bool:
        return fault.until_fault or time.monotonic() - self.began < LAST_BEGIN_S[fault.front]

    def _passed(self) -> str:
        return f"{(time.monotonic() - self.began) / 60:.1f} min"

    def _do_next(self, stage: Stage, fault: Fault) -> None:
        """Done, told and kept."""
        self.site.say(f"[{self._passed()}] {fault.name}: {fault.title}")
        if self._has_time(fault):
            evidence, records = perform(fault, stage, peak=self.peak)
        else:
            late = f"no time was left: EXPERIMENT={fault.name}"
            evidence, records = begin(fault, self.peak, not_done=late), EMPTY
        self.done += 1
        keep_evidence(self.kept.folder, self.done, evidence, records)
        row = make_row(evidence, records)
        counts = f"{row.sent} sent, {row.good} good, {row.unanswered} unanswered, {row.late} late"
        full = "" if row.full_s is None else f"; at full strength after {row.full_s:.1f} s"
        self.site.say(f"  {row.verdict}: {counts}{full}")
        for word in (row.not_done, row.others, *row.broken, *row.notes):
            if word:
                self.site.say(f"  {word}")


def begin(fault: Fault, peak: float, not_done: str = "") -> Evidence:
    """What is known before."""
    return Evidence(
        fault=fault.name,
        front=fault.front,
        title=fault.title,
        deadline_ms=fault.deadline_ms,
        peak=peak,
        rate=round(fault.share * peak, 2),
        promise=fault.promise,
        began=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        until_fault=fault.until_fault,
        not_done=not_done,
    )


def perform(fault: Fault, stage: Stage, *, peak: float) -> tuple[Evidence, Records]:
    """Prepare, load, do it, wait until all is well, undo, verify."""
    evidence, records = begin(fault, peak), EMPTY
    try:
        with stage.undo:
            if fault.prepare:
                fault.prepare(stage)
            evidence, records = do_under_load(fault, stage, evidence)
    except NotDoneError as missing:
        evidence = dataclasses.replace(evidence, not_done=str(missing))
    except (OSError, LoadTestError, ServerError) as problem:
        stage.problems.append(f"could not go on: {type(problem).__name__}: {problem}")
    if fault.promise.verified and not evidence.not_done:
        good, differs = stage.verify()
        evidence = dataclasses.replace(evidence, verified=good, differs=differs)
    notes, problems = stage.take_words()
    return dataclasses.replace(evidence, notes=notes, problems=problems), records


def do_under_load(fault: Fault, stage: Stage, evidence: Evidence) -> tuple[Evidence, Records]:
    """The load ends when all is well, or when nothing more is promised."""
    seed = load.SEED + sum(fault.name.encode())
    with (
        watching(stage.watched) as looks,
        load.sending(stage.target, rate=evidence.rate, deadline_ms=fault.deadline_ms, seed=seed) as under_way,
    ):
        zero = under_way.zero
        time.sleep(max(0.0, zero + CALM_S - time.time()))
        fault_at = time.time()
        fault.do(stage)
        ended = time.time()
        wait_until_well(lambda: looks[-1], fault, since=ended)
        records = under_way.finish()
    return dataclasses.replace(
        evidence,
        fault_s=round(fault_at - zero, 3),
        fault_ended_s=round(ended - zero, 3),
        looks=tuple(dataclasses.replace(look, at=round(look.at - zero, 3)) for look in looks),
    ), records


def wait_until_well(latest: Callable[[], Look], fault: Fault, *, since: float) -> None:
    """Nothing missing and no strays, or the time for that is over."""
    if fault.promise.full_s is None:
        return
    last = since + fault.promise.full_s
    time.sleep(LEAST_S)
    while time.time() < last and not ((look := latest()).full and not look.strays and look.at > since):
        time.sleep(STEP_S)
    time.sleep(TAIL_S)


def judge(kept: Kept) -> list[Verdict]:
    """One for each fault that was asked for: broken promises, of which there shall be none."""
    rows = make_rows(kept)
    verdicts = [
        Verdict(what=f"{name}", why="there is no row of it; look at what was printed")
        for name in list_missing(kept, rows)
    ]
    return verdicts + [judge_row(row) for row in rows if not row.not_done]


def judge_row(row: Row) -> Verdict:
    broken = float(len(row.broken))
    return Verdict(
        what=f"{row.fault} ({row.front})",
        figure=Interval(value=broken, low=broken, high=broken),
        unit=" broken promises",
        limit=0.0,
        at_least=False,
        why="; ".join(row.broken),
    )
