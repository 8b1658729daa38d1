"""The ladder as an experiment: what is measured next, how long it takes, and what came out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from config.definitions import read_definition
from config.installed import read_installed
from config.plan import Layout
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.asked import make_asked
from loadtest.experiments.ladder.blocks import Group, cut_groups, estimate_memory, read_available_mib
from loadtest.experiments.ladder.engines import list_engine_rungs
from loadtest.experiments.ladder.load import PAYLOADS, TIMING, count_users, make_scenario
from loadtest.experiments.ladder.members import make_member
from loadtest.experiments.ladder.rows import MEASURED, MISSING, Row, make_rows
from loadtest.experiments.ladder.rungs import (
    BERT,
    ENGINES,
    KINDS,
    MODELS,
    SETTINGS,
    Rung,
    choose,
    find_rung,
    list_all,
)
from loadtest.experiments.ladder.settings import Settings
from loadtest.payloads import Payload, make_payloads, pick_each_length
from loadtest.results.kept import Kept
from loadtest.systems.fleet import Site
from loadtest.systems.kit import write_plan
from loadtest.systems.system import ROOT
from loadtest.trials.block import Block, Experiment, Timing, Turn, Verdict
from loadtest.trials.validity import is_disturbed

START_SECONDS, BERT_START_SECONDS = 20.0, 32.0
"""Of one server, with its plan, its verify and its expected answers: seen on two cores."""
TURN_EXTRA_SECONDS = 4.0
"""Locust's start and end, the ramp, the first round, and the last answers."""
MOST_TRIES = 2
"""Of a block that the machine disturbs."""


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
    chosen = choose(_list_rungs(model, rungs), only)
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
        kind=KINDS[rungs],
        name=name_experiment(model, rungs),
        asked=asked,
        next_block=course.next_block,
        estimate=course.estimate,
    )


def name_experiment(model: str, rungs: str) -> str:
    """As it is kept, and resumed."""
    return f"{KINDS[rungs]}-{model}"


def _list_rungs(model: str, rungs: str) -> list[Rung]:
    if rungs == ENGINES:
        return list_engine_rungs(read_installed(Path(sys.prefix)).missing_engines)
    return list_all(model)


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

    def estimate(self, kept: Kept) -> float:
        """Seconds for the rest, the first block of which finds nothing up."""
        start = BERT_START_SECONDS if self.model == BERT else START_SECONDS
        start += self.timing.warm_up_s + TURN_EXTRA_SECONDS
        up: set[str] = set()
        seconds = 0.0
        for group in self.list_rest(kept):
            windows = [turn.scenario.duration_s for turn in self._make_block(group).turns]
            turns = sum(windows) + TURN_EXTRA_SECONDS * len(windows)
            seconds += len(set(group.members) - up) * start + self.timing.repeats * turns
            up = set(group.members)
        return seconds


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
