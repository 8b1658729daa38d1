"""How else a model could use the same cores: 1…n intra-op threads, processes, TorchScript's fork and wait;
and what programs see in one process, beside another with everything off.

Without a server, at full speed, so that nothing else decides: a process decodes on one thread, whatever its
model runs on.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handlers.engines import ENGINES
from handlers.engines.stacks import list_of_stack, read_stack
from loadtest.experiments.profile.calls import CALLS
from loadtest.experiments.profile.counters import COUNTERS
from loadtest.experiments.profile.flames import FLAMES
from loadtest.experiments.profile.tools import SECONDS, Tool, watch_by
from loadtest.experiments.targets.rows import switch_off
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.systems.fleet import Member
from loadtest.systems.inprocess import in_process
from loadtest.systems.kit import saturate
from loadtest.trials.block import Block, Turn

BLOCK = "pools"
TOOLS = (FLAMES, CALLS, COUNTERS)
"""Their keys name their blocks, as `pools` does; ends of the scenarios' names, too."""
OFF = "everything off, 1 process of all cores"
REPEATS = 4
WINDOW_S, WARM_UP_S = 3.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One way to use cores."""

    processes: int = 1
    threads: int = 1
    """Intra-op."""
    forks: int = 1
    """Parts of a batch that run at the same time in a process, on inter-op threads."""

    @property
    def cores(self) -> int:
        return self.processes * self.threads * self.forks

    @property
    def name(self) -> str:
        if self.forks > 1:
            return f"1 process, {self.forks} forks of 1 thread"
        return f"{self.processes} process{'es' * (self.processes > 1)} of {self.threads} " + (
            "thread" if self.threads == 1 else "threads"
        )


def list_pools(cpus: int, *, scripted: bool) -> list[Pool]:
    """One thread first; powers of two and all CPUs, then all CPUs as processes, and as forks where the
    engine's graph is TorchScript's."""
    counts = sorted({1, cpus} | {2**power for power in range(cpus.bit_length()) if 2**power <= cpus})
    found = [Pool(threads=threads) for threads in counts]
    if cpus > 1:
        found += [Pool(processes=cpus), *([Pool(forks=cpus)] if scripted else [])]
    return found


def make_pools(model: str, precision: str, payloads: str) -> Block:
    """Each pool in turns, on as many CPUs as it has threads."""
    engine = ENGINES[list_of_stack(read_stack(Path(sys.prefix)))[0]]
    scripted = any(step.name == "trace" for step in engine.steps)
    pools = list_pools(len(os.sched_getaffinity(0)), scripted=scripted)
    scenario = Scenario(
        name=f"{model}-{BLOCK}",
        model=model,
        payloads=payloads,
        arrival=Arrival(loop="closed"),
        steps=(1,),
        warm_up_s=0.0,
        duration_s=WINDOW_S,
        repeats=REPEATS,
    )
    turns = [Turn(member=_make_member(one, model, precision), scenario=scenario, level=1) for one in pools]
    return Block(name=BLOCK, turns=tuple(turns), repeats=REPEATS, warm_up_s=WARM_UP_S)


def make_looks(pools: Block, model: str) -> list[Block]:
    """The first pool once more, looked into by each program; what it counts also with everything off."""
    first = pools.turns[0]
    cores = ("--workers", "1", "--cores-per-worker", str(len(os.sched_getaffinity(0))))
    off = dataclasses.replace(first, member=in_process(OFF, model, (*switch_off(model), *cores)))
    return [_look_into((first,) if tool is FLAMES else (off, first), model, tool) for tool in TOOLS]


def _look_into(turns: Sequence[Turn], model: str, tool: Tool) -> Block:
    name = f"{model}-{tool.key}"
    scenario = dataclasses.replace(turns[0].scenario, name=name, duration_s=SECONDS, repeats=1)
    looking = [dataclasses.replace(one, scenario=scenario, watch=watch_by(tool)) for one in turns]
    return Block(name=tool.key, turns=tuple(looking), warm_up_s=WARM_UP_S)


def _make_member(pool: Pool, model: str, precision: str) -> Member:
    return in_process(pool.name, model, list_arguments(pool, model, precision), forks=pool.forks)


def list_arguments(pool: Pool, model: str, precision: str) -> Sequence[str]:
    """Of `python -m config`: forks have the CPUs of as many threads."""
    cores = pool.threads * pool.forks
    sizes = ("--workers", str(pool.processes), "--cores-per-worker", str(cores))
    return ("--precision", precision, *saturate(model, precision), *sizes)
