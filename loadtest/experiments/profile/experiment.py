"""`make profile`: two systems side by side under load, each with and without what looks at it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.profile.evidence import (
    COLLECTORS,
    LOGGED,
    PLAIN,
    Evidence,
    compare_rates,
    read_evidence,
)
from loadtest.experiments.profile.looks import read_logged, watch_operators, watch_phases
from loadtest.experiments.profile.threads import watch_threads
from loadtest.experiments.profile.tools import COUNTERS, FLAMES, watch_by
from loadtest.experiments.profile.tools import SECONDS as LOOK_S
from loadtest.experiments.targets import switch_off
from loadtest.results.kept import Kept
from loadtest.results.stats import Interval
from loadtest.scenarios.scenario import AUTO, Arrival, Scenario, Step
from loadtest.systems.fleet import Member
from loadtest.systems.inprocess import in_process
from loadtest.systems.kit import kit, saturate
from loadtest.systems.running import find_system, running
from loadtest.systems.stock import BATCH_SIZE, stock
from loadtest.systems.system import System
from loadtest.trials.block import Block, Experiment, Turn, Verdict, Watching
from loadtest.trials.validity import find_doubts
from server.archives import read_archive
from server.verify.collect import read_libraries

KIND = "profile"
STOCK, OFF, RUNNING = "stock", "off", "running: "
PRECISION = "int8"
SECONDS = 20.0
REPEATS = 2
"""The least that gives an interval: windows are long, and what is told are parts of one system, not races."""
WARM_UP_S = 4.0
USERS, SLOW_USERS = 64, 32
"""Of the kit, two full batches of each worker; of a baseline, a full batch of its one worker."""
PAYLOADS = {"resnet50": "one-photo", "bert": "texts-128"}
TIMEOUT_S = 120.0
ONE, ALL_OFF = "one thread", "one thread, everything off"
LIBRARIES = ("iomp", "gomp", "libomp", "jemalloc", "tcmalloc")
WATCHES: Mapping[str, Watching] = dict(
    zip(COLLECTORS, (watch_phases, watch_threads, watch_operators), strict=True)
)
LEAST_SUM, MOST_SUM = 95.0, 105.0
"""Percent: what the parts add up to."""


def check_profile(model: str) -> None:
    """Before archives are built."""
    if model not in PAYLOADS:
        raise LoadTestError(f"MODELS must be one of {', '.join(PAYLOADS)}: got {model or 'nothing'}")


def make_experiment(
    model: str, store: Path, *, against: str = STOCK, precision: str = PRECISION, seconds: float = SECONDS
) -> Experiment:
    """The kit saturated, and what it is compared with, in turns."""
    check_profile(model)
    served = kit(f"kit {precision}", model, ("--precision", precision, *saturate(model, precision)))
    other = choose_other(model, against)
    asked = {
        "model": model,
        "against": against,
        "precision": precision,
        "seconds": seconds,
        "archive": read_archive(store / f"{model}.mar").archive_id,
    }
    blocks = [make_turns(model, (other, served), seconds)]
    if against == STOCK:
        blocks.append(make_logged(model, other.name, seconds))
    blocks += make_looks(model, precision)
    return Experiment(
        kind=KIND,
        name=f"{KIND}-{model}",
        asked=asked,
        next_block=lambda kept: next((one for one in blocks if kept.find(one.name) is None), None),
    )


def choose_other(model: str, against: str) -> Member:
    """What the kit is compared with: plain TorchServe, the kit with everything off, or a server that runs."""
    if against == STOCK:
        return stock("stock TorchServe", model, batch_size=BATCH_SIZE)
    if against == OFF:
        return kit("kit, everything off", model, switch_off(model))
    system = find_system(run_dir=against, url="", name=f"{RUNNING}{Path(against).resolve().name}")
    if system.models != (model,):
        raise LoadTestError(f"AGAINST must serve {model} alone: got {', '.join(system.models)} in {against}")
    return running(system)


def make_turns(model: str, members: Sequence[Member], seconds: float) -> Block:
    """Each system with each collector, all in turns, so that what a collector costs is a ratio of turns."""
    seen = [dataclasses.replace(one, inspect=see_libraries) for one in members]
    return Block(
        name="turns",
        turns=tuple(
            make_turn(one, model, collector, seconds / REPEATS) for one in seen for collector in COLLECTORS
        ),
        repeats=REPEATS,
        warm_up_s=WARM_UP_S,
    )


def make_logged(model: str, name: str, seconds: float) -> Block:
    """Stock's handler takes no questions: oneDNN's log is asked for by the environment, at another start."""
    member = stock(f"{name}{LOGGED}", model, batch_size=BATCH_SIZE, environment={"ONEDNN_VERBOSE": "1"})
    turn = make_turn(dataclasses.replace(member, inspect_after=read_logged), model, PLAIN, seconds / REPEATS)
    # Nothing of its rate is quoted, so it is enough that it answers.
    short = dataclasses.replace(turn.scenario, leave_out_first_round=False, least_rounds=0)
    return Block(name="logged", turns=(dataclasses.replace(turn, scenario=short),), warm_up_s=WARM_UP_S)


def make_looks(model: str, precision: str) -> list[Block]:
    """What programs see in one process of one core without a server; what perf counts, also with everything
    off."""
    one = ("--workers", "1", "--cores-per-worker", "1")
    served = ("--precision", precision, *saturate(model, precision))
    asked = {ONE: (*served, *one), ALL_OFF: (*switch_off(model), *one)}
    scenario = Scenario(
        name=model,
        model=model,
        payloads=PAYLOADS[model],
        arrival=Arrival(loop="closed"),
        steps=(1,),
        warm_up_s=0.0,
        duration_s=LOOK_S,
        repeats=1,
    )
    return [
        Block(
            name=tool.key,
            turns=tuple(
                Turn(
                    member=in_process(name, model, asked[name]),
                    scenario=dataclasses.replace(scenario, name=f"{model}-{tool.key}"),
                    level=1,
                    watch=watch_by(tool),
                )
                for name in names
            ),
            warm_up_s=WARM_UP_S,
        )
        for tool, names in ((FLAMES, (ONE,)), (COUNTERS, (ALL_OFF, ONE)))
    ]


def make_turn(member: Member, model: str, collector: str, seconds: float) -> Turn:
    """A closed loop; its first round is left out, while queues fill."""
    users: Step = USERS if member.name.startswith("kit ") else SLOW_USERS
    if member.name.startswith(RUNNING):
        users = AUTO
    scenario = Scenario(
        name=f"{model}-{collector}",
        model=model,
        payloads=PAYLOADS[model],
        arrival=Arrival(loop="closed"),
        steps=(users,),
        warm_up_s=0.0,
        duration_s=seconds,
        repeats=REPEATS,
        timeout_s=TIMEOUT_S,
        leave_out_first_round=True,
        least_rounds=2,
    )
    return Turn(member=member, scenario=scenario, level=users, watch=WATCHES[collector])


def see_libraries(system: System) -> Mapping[str, Any]:
    """OpenMP runtimes and allocators that a worker has mapped, whoever uses them."""
    pids = [pid for model in system.models for pid in system.list_workers(model)]
    files = {Path(file).name for pid in pids for file in read_libraries(pid) or ()}
    return {"libraries": sorted(name for name in files if any(part in name for part in LIBRARIES))}


def judge(kept: Kept) -> list[Verdict]:
    """The ratio, and whether the parts add up to the whole."""
    found = read_evidence(kept)
    if len(found) < 2:
        return [Verdict(what="two systems side by side", why="their turns are not measured")]
    other, served = found
    doubts = [str(doubt) for one in found for series in one.series.values() for doubt in find_doubts(series)]
    if doubts:
        return [Verdict(what=f"{served.name} / {other.name}", why=doubts[0])]
    ratio = Verdict(what=f"{served.name} / {other.name}", figure=compare_rates(other, served), unit="×")
    return [ratio, *judge_sums(served)]


def judge_sums(one: Evidence) -> list[Verdict]:
    """Both within 5 %; where something cannot be told, nothing is judged."""
    served = one.server_ms / one.client_ms if one.server_ms and one.client_ms else None
    shares = {
        "TorchServe's own account of a request, to the client's": served,
        "all operators, to the model's time": one.operators_share,
    }
    return [
        Verdict(
            what=f"{one.name}: {what}",
            figure=Interval(value=100 * share, low=100 * share, high=100 * share),
            unit=" %",
            limit=LEAST_SUM,
            why=f"at most {MOST_SUM:g} %",
            broken=100 * share > MOST_SUM,
        )
        for what, share in shares.items()
        if share
    ]
