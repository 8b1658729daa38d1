"""The bench: servers take turns under loads; a block that is kept is read instead of measured (resume).

An experiment is a function of a bench, in direct style: it asks for one block after the other, and makes
verdicts, tables and figures of what comes back. On a bench that only reads, it makes the report again.
Servers of a block are up together and measured seconds apart, so that a slow minute of the machine hits all
alike; those that do not have their turn are halted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from loadtest.answers import AnswerCheck, Expected, check_answers, find_expected
from loadtest.drivers import HERE, Generators, Outcome, run_ab, run_locust
from loadtest.errors import CapacityError, LoadTestError, NotMeasuredError, RejectedError
from loadtest.load import Load
from loadtest.machine import CpuWatch, find_cpu_use
from loadtest.payloads import Payload, find_usual, make_payloads
from loadtest.results import Block, Facts, Kept, Series, Window, plain, read_result, start_result, write_json
from loadtest.rows import cut_window, find_good, find_latency, write_rows
from loadtest.servers.base import Running, Server, Testbed
from loadtest.stats import find_overall_rate, measure_rates, pick
from loadtest.validity import find_doubts, is_disturbed
from server.processes import read_anonymous_mib, read_resident_mib
from server.supervisor.reload import read_available_mib

ATTEMPTS = 2
"""At a window that the machine disturbed: a busy moment must not cost an experiment of minutes."""
CAPACITY_WARM_UP_S, CAPACITY_S = 4.0, 8.0
"""Of the short closed loop that tells what 100 % is."""
LEAST_WINDOW_S = 1.0
CACHE = ".expected"
"""In the results' folder: expected answers are computed once for an archive and its payloads."""
DESCRIBED = (
    *("pid", "archive_id", "weights", "notes", "precision", "load_seconds", "steps", "threads", "versions"),
    *("allocator", "openmp", "self_check", "accuracy", "packing", "packing_efficiency"),
)


class Watch(Protocol):
    """Looks from the begin of a load to its end; the window is cut out of it when its edges are known."""

    def cut(self, begin: float, end: float) -> Mapping[str, Any]:
        """What was seen between two moments, seconds since the epoch; plain values."""


Watching = Callable[[Running], contextlib.AbstractContextManager[Watch]]
Pair = tuple[Server, Load]


@dataclass(kw_only=True)
class Up:
    """A server that is up."""

    running: Running
    stack: contextlib.ExitStack
    rate: float = 0.0
    """Requests a second of its last window; it tells how long the next one must be for whole rounds."""
    verified: Mapping[str, Any] | None = None
    looked_at: bool = False


class Bench:
    """Measures blocks into a result's folder; without a testbed it only reads."""

    def __init__(self, kept: Kept, testbed: Testbed | None = None, generators: Generators = HERE) -> None:
        self.kept, self.asked = kept, kept.asked
        self._testbed, self._generators = testbed, generators
        self._began = time.monotonic()
        self._up: dict[str, Up] = {}
        self._payloads: dict[tuple[str, ...], list[Payload]] = {}
        self._expected: dict[tuple[str, ...], Expected | None] = {}

    def say(self, line: str) -> None:
        """A sign of life, with the time so far."""
        if self._testbed:
            self._testbed.say(f"[{(time.monotonic() - self._began) / 60:.0f} min] {line}")

    def measure(self, name: str, server: Server, load: Load, *, watch: Watching | None = None) -> Series:
        """One server under one load, once; RejectedError where the kit cannot serve so."""
        block = self.turns(name, [(server, load)], watches=[watch])
        if block.rejected:
            raise RejectedError(f"{server.name}: {block.rejected[server.name]}", block.rejected[server.name])
        return block.series[0]

    def capacity(self, server: Server, load: Load) -> float:
        """Requests a second of a short closed loop; CapacityError when it is in doubt, as all that follows
        would be."""
        closed = replace(
            load, rate=None, users=None, driver="locust", warm_up_s=CAPACITY_WARM_UP_S, duration_s=CAPACITY_S
        )
        series = self.measure(f"{load.name}-capacity", server, closed)
        if doubts := find_doubts(series):
            raise CapacityError(f"the capacity cannot be measured: {doubts[0]}")
        return series.windows[-1].rate

    def turns(
        self,
        name: str,
        pairs: Sequence[Pair],
        *,
        repeats: int = 1,
        warm_up_s: float = 0.0,
        watches: Sequence[Watching | None] = (),
    ) -> Block:
        """All pairs in each repeat, the order moving on by one; `name` is plain letters, digits and dashes.

        `warm_up_s` is of a load of its own of each server that was not measured since it came up. `watches`
        look beside each pair. LoadTestError where a server cannot be started; what the kit rejects is told in
        the block.
        """
        if (block := self.kept.find_block(name)) is not None:
            return block
        if self._testbed is None:
            raise NotMeasuredError(f"{self.kept.folder.name} was interrupted before its block {name}")
        began, clock = datetime.now(timezone.utc), time.monotonic()
        names = list(dict.fromkeys(server.name for server, _ in pairs))
        self.say(f"{name}: {', '.join(names)}")
        self._keep_only(names)
        rejected = self._start_missing([server for server, _ in pairs], halt=len(names) > 1)
        watching = watches or [None] * len(pairs)
        turns = [
            Turn(self, self._up[server.name], load, watch, len(names) > 1)
            for (server, load), watch in zip(pairs, watching, strict=True)
            if server.name in self._up
        ]
        for turn in turns:
            turn.prepare(warm_up_s)
        facts = {turn.up.running.name: turn.facts for turn in reversed(turns)}
        for repeat in range(repeats):
            first = repeat % max(1, len(turns))
            for turn in (*turns[first:], *turns[:first]):
                turn.measure(repeat, repeats)
        after = {turn.up.running.name: turn.look_after(facts[turn.up.running.name]) for turn in turns}
        block = Block(
            name=name,
            began=began.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - clock, 1),
            series=tuple(turn.finish(after[turn.up.running.name]) for turn in turns),
            rejected=rejected,
            payloads={
                turn.load.payloads: [one.describe() for one in turn.payloads]
                for turn in turns
                if turn.payloads
            },
        )
        self._keep(block, [pair for turn in turns for pair in turn.kept])
        # As it will be read: times are kept to a microsecond, and a decision must come out the same again.
        kept = self.kept.find_block(name)
        assert kept is not None
        return kept

    def _keep(self, block: Block, rows: Sequence[tuple[pd.DataFrame, Sequence[str]]]) -> None:
        """Rows first, so that the JSON says that the block is whole."""
        stem = self.kept.next_stem(block.name)
        write_rows(stem.with_name(f"{stem.name}.requests.csv.gz"), rows)
        write_json(stem.with_name(f"{stem.name}.json"), plain(block))

    def _keep_only(self, names: Sequence[str]) -> None:
        """Take the others down, all at once: each takes seconds, in which it does little."""
        gone = [self._up.pop(name) for name in [*self._up] if name not in names]
        with ThreadPoolExecutor(max_workers=max(1, len(gone))) as stops:
            list(stops.map(lambda one: one.stack.close(), gone))  # list: an error of one is raised here

    def _start_missing(self, servers: Sequence[Server], *, halt: bool) -> dict[str, str]:
        """Server → why the kit rejects it; the others are up, halted where several take turns."""
        assert self._testbed is not None
        rejected: dict[str, str] = {}
        for server in {one.name: one for one in servers}.values():
            if server.name not in self._up:
                free = read_available_mib()
                if server.memory_mib > free:
                    raise LoadTestError(
                        f"{server.name} needs {server.memory_mib} MiB beside what is up: got {free:.0f} MiB; "
                        "end other programs"
                    )
                with contextlib.ExitStack() as stack:
                    try:
                        running = stack.enter_context(server.open(self._testbed))
                    except RejectedError as problem:
                        rejected[server.name] = " ".join(problem.reason.split())
                        self.say(f"  {server.name}: the kit rejects: {rejected[server.name]}")
                        continue
                    if server.prepare:
                        server.prepare(running)
                    self._up[server.name] = Up(running=running, stack=stack.pop_all())
            running = self._up[server.name].running
            running.halt() if halt else running.resume()
        return rejected

    def find_payloads(self, load: Load, running: Running) -> list[Payload]:
        """Of a load, made once."""
        if load.locustfile:
            return []
        key = (load.payloads, *load.models, str(dict(load.shares)))
        if key not in self._payloads:
            self._payloads[key] = make_payloads(
                load.payloads, model=" ".join(load.models), archives=running.archives, shares=load.shares
            )
        return self._payloads[key]

    def find_expected(self, load: Load, running: Running, payloads: Sequence[Payload]) -> Expected | None:
        """Before any load: they take CPU time, which none may have to share."""
        if not load.validated:
            return None
        assert self._testbed is not None
        key = (running.name, load.payloads, *load.models, str(dict(load.shares)))
        if key not in self._expected:
            cache = self.kept.folder.parent / CACHE
            self._expected[key] = find_expected(running, payloads, cache, self._testbed.say)
        return self._expected[key]

    @property
    def generators(self) -> Generators:
        return self._generators

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._keep_only(())


class Turn:
    """One pair of a block while it is measured."""

    def __init__(self, bench: Bench, up: Up, load: Load, watch: Watching | None, halted: bool) -> None:
        self.bench, self.up, self.watch, self.halted = bench, up, watch, halted
        running = up.running
        if running.models and (missing := [one for one in load.models if one not in running.models]):
            served = ", ".join(running.models)
            raise LoadTestError(
                f"the model must be one that is served, {served}: got {missing[0]} ({load.name})"
            )
        auto = load.users is None and not load.is_open
        self.load = replace(load, users=running.auto_users(load.models)) if auto else load
        if not load.payloads and not load.locustfile:
            self.load = replace(self.load, payloads=find_usual(load.models[0], running.archives))
        self.payloads: list[Payload] = []
        self.expected: Expected | None = None
        self.facts = Facts(name=running.name)
        self.windows: list[Window] = []
        self.kept: list[tuple[pd.DataFrame, Sequence[str]]] = []

    def prepare(self, warm_up_s: float) -> None:
        """Look at the server, find what is right, and warm it up where it is new."""
        running = self.up.running
        with running.resumed(self.halted):
            if not self.up.looked_at:
                self.up.verified, self.up.looked_at = running.verify(), True
            self.facts = self._look_before()
            made = self.bench.find_payloads(self.load, running)
            self.expected = self.bench.find_expected(self.load, running, made)
            self.payloads = [running.adapt(one) for one in made]
            if warm_up_s and not self.up.rate:
                plainer = replace(
                    self.load,
                    duration_s=warm_up_s,
                    warm_up_s=0.0,
                    leave_out_first_round=False,
                    least_rounds=0,
                )
                outcome, *_ = self._send(plainer, watch=None)
                self.up.rate = find_overall_rate(outcome.rows)

    def _look_before(self) -> Facts:
        running, models = self.up.running, self.up.running.models
        return Facts(
            name=running.name,
            how=running.how,
            models=models,
            is_kit=running.is_kit,
            precisions={model: running.precision(model) for model in models},
            accuracy={model: running.accuracy(model) for model in models},
            least_agreement=running.least_agreement,
            plan=json.loads(running.plan.to_json()) if running.plan else None,
            verify_before=self.up.verified,
            pids_before=tuple(sorted(pid for pids in running.list_workers().values() for pid in pids)),
            start_s=running.start_s,
        )

    def look_after(self, facts: Facts) -> Facts:
        """With what the server is behind the last window."""
        running = self.up.running
        with running.resumed(self.halted):
            self.up.verified = running.verify()
            pids = sorted(pid for pids in running.list_workers().values() for pid in pids)
            described = running.describe_workers()
        return replace(
            facts,
            described=tuple({key: one.get(key) for key in DESCRIBED} for one in described),
            verify_after=self.up.verified,
            pids_after=tuple(pids),
            causes=running.list_causes(),
            own_mib=tuple(mib for pid in pids if (mib := read_anonymous_mib(pid)) is not None),
        )

    def measure(self, repeat: int, repeats: int) -> None:
        """One window, once more where the machine disturbed it."""
        for attempt in range(1, ATTEMPTS + 1):
            load = replace(self.load, duration_s=self._plan_duration(), seed=self.load.seed + 1000 * repeat)
            with self.up.running.resumed(self.halted):
                window, outcome = self._take_window(load, repeat, attempt)
            self.up.rate = window.rate or find_overall_rate(outcome.rows)
            again, bad = " again" * (attempt > 1), f", {window.errors} failed" * bool(window.errors)
            self.bench.say(
                f"  {self.up.running.name}, {load.place}, repeat {repeat + 1} of {repeats}{again}: "
                f"{window.requests} requests{bad}"
            )
            one = dataclasses.replace(self.finish(self.facts), windows=(window,), rows=())
            if attempt == ATTEMPTS or not is_disturbed(one):
                break
        self.windows.append(window)
        self.kept.append((outcome.rows, outcome.answers))

    def finish(self, facts: Facts) -> Series:
        return Series(
            facts=facts,
            load=self.load,
            windows=tuple(self.windows),
            generated_here=not self.bench.generators.remote,
            rows=tuple(rows for rows, _ in self.kept),
        )

    def _plan_duration(self) -> float:
        """As asked, or so many answers of each user behind the first round, when that is longer."""
        load, rate = self.load, self.up.rate
        if not rate or load.is_open:
            return load.duration_s
        a_round = load.level / rate
        first = max(0.0, a_round - load.warm_up_s) if load.leave_out_first_round else 0.0
        return round(first + max(load.duration_s, load.least_rounds * a_round), 3)

    def _take_window(self, load: Load, repeat: int, attempt: int) -> tuple[Window, Outcome]:
        began = datetime.now(timezone.utc).isoformat(timespec="seconds")
        outcome, use, watched = self._send(load, watch=self.watch)
        window = make_window(load, outcome, check_answers(outcome.rows, outcome.answers, self.expected))
        memory = {
            f"{model} {pid}": float(read_resident_mib(pid) or 0)
            for model, pids in self.up.running.list_workers().items()
            for pid in pids
        }
        return replace(
            window, repeat=repeat, attempt=attempt, began=began, cpu=use, watched=watched, memory_mib=memory
        ), outcome

    def _send(self, load: Load, *, watch: Watching | None) -> tuple[Outcome, Any, Mapping[str, Any]]:
        """In a folder that is gone afterwards with the token in it."""
        running, generators = self.up.running, self.bench.generators
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kit-load-")))
            more = stack.enter_context(watch(running)) if watch else None
            cpu = stack.enter_context(CpuWatch(running.run.path if running.run else None))
            if running.runner is not None:
                outcome = running.runner.run(load, self.payloads, folder)
            elif load.driver == "ab":
                outcome = run_ab(
                    load, url=running.url, token=running.token(), payload=self.payloads[0], folder=folder
                )
            else:
                outcome = run_locust(
                    load, url=running.url, token=running.token(), payloads=self.payloads,
                    generators=generators, folder=folder,
                )  # fmt: skip
        here = 0.0 if generators.remote else sum(outcome.cpu_shares)
        end = outcome.wall_zero + load.duration_s
        use = find_cpu_use(cpu.readings, outcome.wall_zero, end, generator_cores=here)
        return outcome, use, more.cut(outcome.wall_zero, end) if more else {}


def make_window(load: Load, outcome: Outcome, answers: AnswerCheck) -> Window:
    """What the rows, or ab's report, tell; nothing is measured here."""
    known: dict[str, Any] = {
        "repeat": 0, "began": "", "answers": answers, "generator_cores": outcome.cpu_shares,
        "model_share": outcome.model_share,
    }  # fmt: skip
    if (ab := outcome.ab) is not None:
        kinds = {"failed (ab)": ab.failed, "status outside 2xx (ab)": ab.non_2xx}
        return Window(
            **known, begin_s=0.0, end_s=load.duration_s, requests=ab.complete, errors=ab.failed + ab.non_2xx,
            error_kinds={kind: count for kind, count in kinds.items() if count},
            rates=(ab.requests_per_second,), p50_ms=ab.percentiles_ms.get("50"), ab=ab,
        )  # fmt: skip
    rows = outcome.rows
    begin, end = find_window(rows, load)
    window = cut_window(rows, begin, end)
    good = find_good(window)
    latency = find_latency(window)[good]
    lag = (window["sent"] - window["due"]).dropna().to_numpy()
    bad = window[~good]
    texts = bad["error"].where(bad["error"] != "", "status " + bad["status"].astype(str))
    return Window(
        **known,
        begin_s=begin,
        end_s=end,
        requests=len(window),
        errors=int((~good).sum()),
        error_kinds=dict(Counter(texts)),
        rates=measure_rates(rows, begin, end),
        p50_ms=1000 * pick(latency, 50) if len(latency) else None,
        lag_p99_ms=1000 * pick(lag, 99) if len(lag) else None,
    )


def find_window(rows: pd.DataFrame, load: Load) -> tuple[float, float]:
    """(begin, end) in the rows' time; LoadTestError when the first round leaves too little."""
    begin, end = 0.0, load.duration_s
    if load.leave_out_first_round and len(rows):
        first_round = np.argsort(rows["sent"].to_numpy(), kind="stable")[: int(load.level)]
        begin = max(begin, float(rows["ended"].to_numpy()[first_round].max()))
    if end - begin < min(LEAST_WINDOW_S, load.duration_s):
        raise LoadTestError(
            f"the first answers of {load.level:.0f} users took {begin:.1f} of {end:.1f} s; "
            "measure longer (DURATION=)"
        )
    return begin, end


def list_latencies_ms(series: Series) -> list[np.ndarray]:
    """Of the good requests, by window, without those of ab."""
    found = []
    for window, rows in zip(series.windows, series.rows, strict=True):
        own = cut_window(rows, window.begin_s, window.end_s)
        found.append(1000 * find_latency(own[find_good(own)]))
    return found


@contextlib.contextmanager
def open_bench(
    kind: str,
    name: str,
    asked: Mapping[str, Any],
    testbed: Testbed,
    *,
    results: Path,
    resume: Path | None = None,
    generators: Generators = HERE,
) -> Iterator[Bench]:
    """A bench on a new result, or on one that was interrupted; nothing stays up behind it."""
    kept = resume_result(kind, asked, resume) if resume else start_result(kind, name, asked, results)
    with Bench(kept, testbed, generators) as bench:
        yield bench


def resume_result(kind: str, asked: Mapping[str, Any], folder: Path) -> Kept:
    """What was kept; LoadTestError names all that differs from what it was started with."""
    kept = read_result(folder)
    differences = list(find_differences(kept.asked, plain(asked)))
    if kept.kind != kind:
        differences.insert(0, f"experiment: was {kept.kind}, is {kind}")
    if differences:
        listed = "\n  ".join(differences)
        raise LoadTestError(
            f"{folder.name} can only be resumed where everything is as it was:\n  {listed}\n"
            "start a new one, without --resume"
        )
    return kept


def find_differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Each value that is not the same, by its path."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*then, *now]):
            yield from find_differences(then.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif then != now:
        before, after = (json.dumps(one, ensure_ascii=False)[:100] for one in (then, now))
        yield f"{where}: was {before}, is {after}"
