"""The ladder as an experiment: what is measured next, how long it takes, and what came out.

Its blocks are servers that are up together and take turns, so that they can be compared. A block has with
each rung the one it is compared with; that one is carried over from the block before. Halted servers keep
their memory, so blocks are as large as that allows.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from config.definitions import read_definition
from config.installed import read_installed
from config.plan import Layout, Plan, Setting
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.rows import MEASURED, MISSING, Row, make_rows
from loadtest.experiments.ladder.rungs import (
    ENGINES,
    FILLED,
    KINDS,
    MODELS,
    OFF,
    ONE_WORKER,
    PAYLOADS,
    SETTINGS,
    TIMING,
    Rung,
    Settings,
    choose,
    count_users,
    find_rung,
    list_all,
    list_engine_rungs,
    make_arguments,
    make_scenario,
)
from loadtest.payloads import Payload, make_payloads, pick_each_length
from loadtest.results.host import read_host
from loadtest.results.kept import Kept
from loadtest.systems.fleet import Member, Site
from loadtest.systems.kit import kit, write_plan
from loadtest.systems.stock import BATCH_SIZE, stock
from loadtest.systems.system import ROOT, System
from loadtest.trials.block import Block, Experiment, Timing, Turn, Verdict
from loadtest.trials.validity import is_disturbed
from server.archives import read_archive
from server.processes import read_anonymous_mib
from server.supervisor.moving import read_available_mib

MOST_TRIES = 2
"""Of a block that the machine disturbs."""
MOST_SERVERS = 6
"""More would lie minutes apart within one repeat."""
USABLE_MEMORY = 0.8
"""Of what is available: page cache and the load generator need some too."""
SERVER_MIB = 700
"""Of TorchServe's Java and the launchers, beside the workers."""
OWN_SHARE = 0.8
"""Of a worker's resident set; the rest are libraries that all workers share (seen)."""
AT_ONCE = 16
OWN_MIB = "own_mib"
"""In SystemFacts.seen."""


def make_experiment(
    model: str, site: Site, timing: Timing = TIMING, only: Sequence[str] = (), rungs: str = SETTINGS
) -> Experiment:
    """Everything but the servers; `only` names some of the rungs, for a trial."""
    check_asked(model, rungs)
    archive = site.store / f"{model}.mar"
    if not archive.is_file():
        raise LoadTestError(f"no archive {archive.name} in the store: `make ladder` builds it")
    folder, port = site.place("plan")
    arguments = ["--precision", Settings().precision, "--model-store", str(site.store)]
    plan = write_plan(folder, port=port, model=model, arguments=arguments)
    payloads = make_payloads(PAYLOADS[model], model=model, archives={model: archive})
    missing = read_installed(Path(sys.prefix)).missing_engines
    chosen = choose(list_engine_rungs(missing) if rungs == ENGINES else list_all(model), only)
    course = Course(
        model=model,
        timing=timing,
        rungs=chosen,
        layout=plan.layout,
        each_length=pick_each_length(payloads, archive),
        available_mib=read_available_mib(),
    )
    asked = make_asked(model, plan, archive, payloads=payloads, rungs=chosen, timing=timing)
    return Experiment(
        kind=KINDS[rungs], name=name_experiment(model, rungs), asked=asked, next_block=course.next_block
    )


def name_experiment(model: str, rungs: str) -> str:
    """As it is kept, and resumed."""
    return f"{KINDS[rungs]}-{model}"


def check_asked(model: str, rungs: str = SETTINGS) -> None:
    """Before minutes are spent on what gives no figures."""
    if rungs not in KINDS:
        raise LoadTestError(f"RUNGS must be one of {', '.join(KINDS)}: got {rungs}")
    if model not in MODELS:
        raise LoadTestError(f"MODELS must be one of {', '.join(MODELS)}: got {model or 'nothing'}")


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is measured in which blocks; what is kept says how far it is."""

    model: str
    timing: Timing
    rungs: Sequence[Rung]
    layout: Layout
    each_length: Sequence[Payload] = ()
    available_mib: float
    """Memory that the machine had before any server was up."""

    def next_block(self, kept: Kept) -> Block | None:
        return next((self._make_block(group) for group in self.list_rest(kept)), None)

    def list_rest(self, kept: Kept) -> list[Group]:
        """What is not measured yet; then what the machine disturbed, once more."""
        known = {name for block in kept.blocks for name in (*block.systems, *block.refused)}
        left = [rung for rung in self.rungs if rung.name not in known]
        return [*cut_groups(left, self._count_memory, self.available_mib), *list_disturbed(kept)]

    def _count_memory(self, name: str) -> int:
        memory = read_definition(ROOT / "models" / self.model / "model.yaml").worker_memory_mib
        return estimate_memory(find_rung(self.rungs, name), memory, self.layout)

    def _make_block(self, group: Group) -> Block:
        return Block(
            name=group.name,
            turns=tuple(self._make_turn(find_rung(self.rungs, name)) for name in group.members),
            repeats=self.timing.repeats,
            warm_up_s=self.timing.warm_up_s,
        )

    def _make_turn(self, rung: Rung) -> Turn:
        return Turn(
            member=make_member(rung, self.model, self.layout, self.each_length),
            scenario=make_scenario(rung, self.model, self.timing),
            level=count_users(rung),
        )


def list_disturbed(kept: Kept) -> list[Group]:
    """Blocks that are worth measuring again."""
    tries = [block.name for block in kept.blocks]
    return [
        Group(name=block.name, members=(*block.systems, *block.refused))
        for block in kept.list_blocks()
        if tries.count(block.name) < MOST_TRIES and any(map(is_disturbed, kept.list_series(block)))
    ]


def judge(kept: Kept) -> list[Verdict]:
    """Of each rung its ratio to the one it is compared with; what cannot be measured here has none."""
    return [_judge_row(row) for row in make_rows(kept) if row.state in (MEASURED, MISSING)]


def _judge_row(row: Row) -> Verdict:
    compared = row.to_before is not None
    doubts = "; ".join(f"{one.state} ({one.evidence}); {one.next_step}" for one in row.doubts)
    return Verdict(
        what=f"{row.rung.label}, to {row.rung.before}" if compared else row.rung.label,
        figure=row.to_before if compared else row.rate,
        unit="×" if compared else " requests/s",
        why=doubts or row.verdict or (MISSING if row.state == MISSING else ""),
    )


def make_asked(
    model: str,
    plan: Plan,
    archive: Path,
    *,
    payloads: Sequence[Payload],
    rungs: Sequence[Rung],
    timing: Timing,
) -> dict[str, Any]:
    """Without paths: the same machine may hold them elsewhere."""
    known = read_archive(archive)
    return {
        "model": model,
        "host": {name: value for name, value in read_host().items() if name != "load_average"},
        "archive": {"id": known.archive_id, "weights": known.weights, "notes": list(known.notes)},
        "payloads": hashlib.sha256("".join(one.digest for one in payloads).encode()).hexdigest()[:16],
        "plan": read_values({**vars(plan.models[model]), **vars(plan.layout)}),
        "environment": read_values({**plan.environment, **plan.worker_environment}),
        "timing": asdict(timing),
        "arguments": {
            rung.name: " ".join(
                [rung.label] if rung.is_stock else make_arguments(rung.settings, plan.layout, model)
            )
            + f"; {count_users(rung)} users"
            for rung in rungs
            if not rung.reason
        },
        "rungs": {rung.name: asdict(rung) for rung in rungs},
    }


def read_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was decided, without its reasons; where the preloaded libraries lie does not matter."""
    decided = {name: one for name, one in settings.items() if isinstance(one, Setting)}
    return {name: one.value for name, one in decided.items() if name != "LD_PRELOAD"}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rungs that are measured in one block."""

    name: str
    """Of the block, by the first rung that is measured for its own sake: each is so in one block alone."""
    members: tuple[str, ...] = ()

    def grow(self, rung: Rung) -> Group:
        """With one more, and what it is compared with."""
        wanted = [name for name in (rung.before, rung.name) if name and name not in self.members]
        return Group(name=self.name, members=(*self.members, *wanted))


def cut_groups(rungs: Sequence[Rung], memory_mib: Callable[[str], int], available_mib: float) -> list[Group]:
    """In the rungs' order, each as large as it may be; what does not apply is left out."""
    limit = USABLE_MEMORY * available_mib
    groups: list[Group] = []
    for rung in rungs:
        if rung.reason:
            continue
        grown = groups[-1].grow(rung) if groups else None
        if grown and len(grown.members) <= MOST_SERVERS and sum(map(memory_mib, grown.members)) <= limit:
            groups[-1] = grown
            continue
        groups.append(Group(name=f"from-{rung.name}").grow(rung))
        members = groups[-1].members
        if (needed := sum(map(memory_mib, members))) > limit:
            raise LoadTestError(
                f"{', '.join(members)} must be up together and need {needed} MiB: "
                f"got {limit:.0f} MiB that may be used; end other programs"
            )
    return groups


def estimate_memory(rung: Rung, memory_mib: Mapping[str, int], layout: Layout) -> int:
    """Of its server, by what the definition says of a worker of each precision."""
    workers = 1 if rung.settings.workers == ONE_WORKER else layout.workers_per_model.value
    return SERVER_MIB + round(workers * OWN_SHARE * memory_mib[rung.settings.precision])


def make_member(rung: Rung, model: str, layout: Layout, each_length: Sequence[Payload] = ()) -> Member:
    """`each_length` is sent to servers without buckets before they are measured.

    A length that is new to a worker costs it a compile, and in a turn of seconds it would meet more new ones
    than in any hour of serving.
    """

    if rung.is_stock:
        size = BATCH_SIZE if rung.settings.batches == FILLED else 1
        # None where the sizes are TorchServe's own.
        return stock(rung.name, model, batch_size=size if rung.settings.workers == ONE_WORKER else None)

    def prepare(system: System) -> Mapping[str, Any]:
        if rung.settings.buckets == OFF:
            workers = len(system.list_workers(model))
            # Requests go to whichever worker is free: with one pass more most lengths have been to each.
            system.ask([*each_length] * (1 if workers == 1 else workers + 1), at_once=AT_ONCE)
        return {}

    def see_memory(system: System) -> Mapping[str, Any]:
        """What is each worker's alone, as no file's: libraries and mapped weights are there once for all."""
        return {OWN_MIB: [read_anonymous_mib(pid) for pid in system.list_workers(model)]}

    served = kit(rung.name, model, make_arguments(rung.settings, layout, model))
    return replace(served, inspect=prepare, inspect_after=see_memory)
