"""`make profile`: two servers side by side under load, each with and without what looks at it."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.bench import Bench, Watching
from loadtest.errors import LoadTestError
from loadtest.load import Load
from loadtest.profile.onednn import take_marked
from loadtest.profile.page import LATENCY, OPERATORS, PLAIN, QUEUE, THREADS, Evidence, show_profile
from loadtest.profile.threads import ThreadWatch
from loadtest.profile.tools import COUNTERS, FLAMES, Told, watch_by
from loadtest.profile.tools import SECONDS as LOOK_S
from loadtest.report import Result, Verdict
from loadtest.servers.base import Running, Server, find_running, kept_server, running_server
from loadtest.servers.inprocess import in_process_server
from loadtest.servers.kit import kit_server, saturate
from loadtest.servers.stock import BATCH_SIZE, stock_server
from loadtest.stats import find_mean, find_ratio
from server.archives import read_archive

KIND = "profile"
STOCK, OFF = "stock", "off"
"""Of --against; anything else is the run directory of a server that is up."""
PRECISION, SECONDS, WARM_UP_S, REPEATS = "int8", 20.0, 4.0, 2
"""Two repeats give an interval: windows are long, and what is told are parts of one server, not races."""
USERS, SLOW_USERS = 64, 32
"""Of the kit, two full batches of each worker; of a baseline, a full batch of its one worker."""
PAYLOADS = {"resnet50": "one-photo", "bert": "texts-128"}
EVERYTHING_OFF = (
    *("PRECISION=fp32", "BACKEND=eager", "PINNING=0", "ALLOCATOR=system", "OPENMP=gnu"),
    "OFF=channels_last,trace,freeze,packing",
)
"""Eager FP32 with the handler's own preprocessing."""
OTHER, KIT, LOGGED, ALONE, ALONE_OFF = "other", "kit", "logged", "alone", "alone-off"
"""Roles: what the kit is beside; the kit; the first again with oneDNN's log; one process without a server."""
WISH, RESULT = "operators=8 onednn=2", "result"
"""The next runs in each worker: with fewer, one odd batch decides; each costs its batch some ms."""
LEAST_SUM, MOST_SUM = 95.0, 105.0


class Side(NamedTuple):
    """One server with its load; None are as many users as keep full batches in every worker."""

    server: Server
    users: int | None


def make_sides(model: str, *, against: str = STOCK, precision: str = PRECISION) -> dict[str, Side]:
    """By role; nothing is started. LoadTestError where `against` cannot be compared with."""
    served = (f"PRECISION={precision}", *saturate(model, precision))
    off, one = (*EVERYTHING_OFF, *saturate(model, "fp32")), ("WORKERS=1", "CORES_PER_WORKER=1")
    plain = partial(stock_server, model=model, batch_size=BATCH_SIZE)
    if against == STOCK:
        # Its handler takes no questions: oneDNN's log is asked for by the environment, at another start.
        logged = plain("plain TorchServe, logged", environment={"ONEDNN_VERBOSE": "1"})
        others = {OTHER: Side(plain("plain TorchServe"), SLOW_USERS), LOGGED: Side(logged, SLOW_USERS)}
    elif against == OFF:
        others = {OTHER: Side(kit_server("kit, everything off", [model], off), SLOW_USERS)}
    elif (models := find_running(against).models) == (model,):
        others = {OTHER: Side(running_server(against, f"running: {Path(against).resolve().name}"), None)}
    else:
        raise LoadTestError(f"--against must serve {model} alone: got {', '.join(models)} in {against}")
    return {
        **others,
        KIT: Side(kit_server(f"kit {precision}", [model], served), USERS),
        ALONE: Side(in_process_server("one thread", model, [*served, *one]), 1),
        ALONE_OFF: Side(in_process_server("one thread, everything off", model, [*off, *one]), 1),
    }


def ask(model: str, store: Path, sides: Mapping[str, Side], precision: str, seconds: float) -> dict:
    """`seconds` are of each server with each collector, over all repeats."""
    named = {role: {"name": one.server.name, "users": one.users} for role, one in sides.items()}
    archive = read_archive(store / f"{model}.mar").archive_id
    return {"model": model, "precision": precision, "seconds": seconds, "archive": archive, "sides": named}


def run(bench: Bench, sides: Mapping[str, Side] | None = None) -> Result:
    """All collectors in turns, so that what one costs is a ratio of turns; then the log, then the tools."""
    model, named = bench.asked["model"], bench.asked["sides"]
    sides = sides or {role: Side(kept_server(one["name"]), one["users"]) for role, one in named.items()}
    load = Load(
        name=PLAIN, models=(model,), payloads=PAYLOADS[model], warm_up_s=0.0, timeout_s=120.0,
        duration_s=bench.asked["seconds"] / REPEATS, leave_out_first_round=True, least_rounds=2,
    )  # fmt: skip
    both = [sides[role] for role in (OTHER, KIT)]
    pairs = [(one.server, replace(load, name=name, users=one.users)) for one in both for name in WATCHES]
    turns = bench.turns("turns", pairs, repeats=REPEATS, warm_up_s=WARM_UP_S, watches=[*WATCHES.values()] * 2)
    # Nothing is quoted of the other rates: it is enough that they answer.
    short = replace(load, warm_up_s=WARM_UP_S, leave_out_first_round=False, least_rounds=0)
    logged, told = None, dict[str, dict[str, Mapping[str, Any]]]()
    if side := sides.get(LOGGED):
        slow = replace(short, name=LOGGED, users=side.users)
        logged = bench.measure(LOGGED, side.server, slow, watch=look("onednn", lambda _: None, read_log))
    for tool, roles in ((FLAMES, (ALONE,)), (COUNTERS, (ALONE_OFF, ALONE))):
        one = replace(short, name=tool.key, users=1, duration_s=LOOK_S)
        pairs = [(sides[role].server, one) for role in roles]
        block = bench.turns(tool.key, pairs, watches=[partial(watch_by, tool)] * len(roles))
        told[tool.key] = {name: {"problem": reason} for name, reason in block.rejected.items()}
        told[tool.key] |= {series.server: series.windows[-1].watched for series in block.series}
    other, kit = Evidence(both[0].server.name, turns, logged), Evidence(both[1].server.name, turns)
    return show_profile(other, kit, told, judge(other, kit))


def judge(other: Evidence, kit: Evidence) -> list[Verdict]:
    """The ratio, and whether the kit's parts add up to the whole, in percent; what is not told is no sum."""
    what, why = f"{kit.name} / {other.name}", other.why or kit.why
    ratio = None if why else find_ratio(kit.series[PLAIN].rates, other.series[PLAIN].rates)
    verdicts = [Verdict(what=what, figure=ratio, unit="×", why=why)]
    sums = {"TorchServe's own account of a request, to the client's": kit.account_share,
            "all operators, to the model's time": kit.operators_share}  # fmt: skip
    for name, share in () if kit.why else sums.items():
        figure = None if math.isnan(share) else find_mean([100 * share])
        why = f"at most {MOST_SUM:g} %" if figure else "its workers did not tell; see the model log"
        one = Verdict(what=f"{kit.name}: {name}", figure=figure, unit=" %", limit=LEAST_SUM, why=why)
        verdicts.append(replace(one, failed=100 * share > MOST_SUM))
    return verdicts


def read_account(running: Running) -> Counter[str]:
    """Seconds times requests so far, by the handler's clock and TorchServe's counters; empty if not told."""
    found: Any = Counter()
    for one in running.describe_workers():
        found.update(one.get("phases", {}))
    sample = rf'^({QUEUE}|{LATENCY}){{[^}}]*model_name="{running.models[0]}"[^}}]*}} (\S+)$'
    for name, value in re.findall(sample, running.client.metrics(), re.MULTILINE) if found else ():
        found[name] += float(value) / 1e6
    return found


def read_log(running: Running, _: None) -> list[str]:
    """oneDNN's lines in the model log of a server that was started with ONEDNN_VERBOSE=1."""
    log = running.run and running.run.logs / "model_log.log"
    return take_marked(log.read_text(errors="replace").splitlines()) if log and log.exists() else []


def look(key: str, begin: Callable[[Running], Any], end: Callable[[Running, Any], Any]) -> Watching:
    """A watch that tells what `end` makes of the server and of what `begin` gave; both are off the load."""

    @contextlib.contextmanager
    def watch(running: Running) -> Iterator[Told]:
        told, before = Told(), begin(running)
        yield told
        told[key] = end(running, before)

    return watch


WATCHES: Mapping[str, Watching] = {
    PLAIN: look("account", read_account, lambda running, before: read_account(running) - before),
    THREADS: ThreadWatch,
    OPERATORS: look("profiles", lambda running: running.describe_workers(profile=WISH), lambda running, _: [
        one.get("profile", {}) for one in running.describe_workers(profile=RESULT)
    ]),
}  # fmt: skip
