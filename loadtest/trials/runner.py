"""Runs an experiment: brings systems up, lets them take turns, keeps each block as soon as it is finished.

Systems of a block are up together and measured seconds apart, so that a slow minute of the machine hits all
alike; those that do not have their turn are halted. What is kept can be resumed by the same call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from loadtest.answers.expected import Expected, find_expected
from loadtest.drivers.locust import ONE_PROCESS, Crew
from loadtest.drivers.records import Records
from loadtest.errors import LoadTestError, RefusedError
from loadtest.payloads import Payload, make_payloads
from loadtest.results.kept import RESULTS, Kept, keep_block, plain, start_result
from loadtest.results.stats import find_overall_rate
from loadtest.results.trial import KeptBlock, Series, SystemFacts, Trial
from loadtest.scenarios.scenario import AUTO
from loadtest.systems.fleet import Fleet, Site, Up
from loadtest.systems.system import System
from loadtest.trials.block import Block, Experiment, Turn, resume_result, watch_nothing
from loadtest.trials.trial import Load, measure_trial
from loadtest.trials.validity import is_disturbed

START_S, TURN_EXTRA_S = 30.0, 5.0
"""Of a system with its verify and expected answers, and around each window: seen on two cores."""
CACHE = ".expected"
"""In the results' folder: expected answers are computed once for an archive and its payloads."""
KEPT_OF_DESCRIBE = (
    *("pid", "archive_id", "weights", "notes", "precision", "load_seconds", "steps", "threads", "versions"),
    *("allocator", "openmp", "self_check", "accuracy", "packing", "fill"),
)


def run_experiment(
    experiment: Experiment,
    site: Site,
    *,
    results: Path = RESULTS,
    resume: Path | None = None,
    crew: Crew = ONE_PROCESS,
) -> Kept:
    """All blocks that are not there yet; what is finished stays, whatever happens."""
    kept = (
        resume_result(experiment, resume)
        if resume
        else start_result(experiment.kind, experiment.name, experiment.asked, results)
    )
    return _Runner(experiment=experiment, site=site, crew=crew, cache=results / CACHE).run(kept)


@dataclass(kw_only=True)
class _Ready:
    """A system of the block that is measured."""

    up: Up
    facts: SystemFacts

    @property
    def system(self) -> System:
        return self.up.system


@dataclass(kw_only=True)
class _Runner:
    experiment: Experiment
    site: Site
    crew: Crew
    cache: Path
    _began: float = field(default_factory=time.monotonic)
    _rates: dict[str, float] = field(default_factory=dict)
    """Of each system that is up and was measured: it tells how long the next window must be."""
    _verified: dict[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Of the same, when it was last looked at."""
    _payloads: dict[tuple[str, str], list[Payload]] = field(default_factory=dict)
    _expected: dict[tuple[str, str, str], Expected] = field(default_factory=dict)

    def run(self, kept: Kept) -> Kept:
        """Block after block; nothing stays up behind it."""
        with Fleet(site=self.site).opened() as fleet:
            while (block := self.experiment.next_block(kept)) is not None:
                minutes = estimate_seconds(block, fleet.up) / 60
                self._report(f"{block.name}: {', '.join(list_systems(block))}; up to {minutes:.0f} min")
                measured, records = self._measure(fleet, block)
                kept = keep_block(kept, measured, records)
        return kept

    def _report(self, line: str) -> None:
        self.site.say(f"[{(time.monotonic() - self._began) / 60:.0f} min] {line}")

    def _measure(self, fleet: Fleet, block: Block) -> tuple[KeptBlock, list[Records]]:
        began = datetime.now(timezone.utc)
        self._forget(fleet, block)
        refused: dict[str, str] = {}
        ready, loads = self._bring(fleet, block, refused)
        measured = list(self._take_turns(block, ready, loads))
        after = {name: self._look_after(one) for name, one in ready.items()}
        return KeptBlock(
            number=0,
            name=block.name,
            began=began.isoformat(timespec="seconds"),
            seconds=round((datetime.now(timezone.utc) - began).total_seconds(), 1),
            generated_here=not self.crew.remote,
            systems=after,
            trials=tuple(trial for trial, _ in measured),
            refused=refused,
            payloads={key[0]: [one.describe() for one in made] for key, made in self._used(block)},
        ), [records for _, records in measured]

    def _forget(self, fleet: Fleet, block: Block) -> None:
        """Take down what this block does not need."""
        fleet.keep_only(list_systems(block))
        self._rates = {name: rate for name, rate in self._rates.items() if name in fleet.up}
        self._verified = {name: one for name, one in self._verified.items() if name in fleet.up}

    def _bring(
        self, fleet: Fleet, block: Block, refused: dict[str, str]
    ) -> tuple[dict[str, _Ready], list[Load]]:
        """Every system that the kit does not refuse, all halted when there are several; and their loads, as
        the block lists its turns, which may put what is compared side by side."""
        several, ready, loads = len(list_systems(block)) > 1, dict[str, _Ready](), list[Load]()
        for turn in block.turns:
            name = turn.member.name
            if name not in ready and name not in refused:
                try:
                    up = fleet.bring(turn.member, halt=several)
                except RefusedError as problem:
                    refused[name] = " ".join(problem.reason.split())
                    self._report(f"  {name}: the kit refuses: {refused[name]}")
                    continue
                with halting(up.system, several):
                    ready[name] = _Ready(up=up, facts=self._look_before(up))
            if name in ready:
                with halting(ready[name].system, several):
                    loads.append(self._prepare(turn, ready[name].system))
        return ready, loads

    def _look_before(self, up: Up) -> SystemFacts:
        system = up.system
        if system.name not in self._verified:
            self._verified[system.name] = system.verify()
        pids = [pid for model in system.models for pid in system.list_workers(model)]
        described = [
            one for model in system.models if system.is_kit for one in system.describe_workers(model)
        ]
        return SystemFacts(
            name=system.name,
            how=system.how,
            models=system.models,
            is_kit=system.is_kit,
            precisions={model: system.precision(model) for model in system.models},
            accuracy={model: system.accuracy(model) for model in system.models},
            least_agreement=system.least_agreement,
            plan=json.loads(system.plan.to_json()) if system.plan else None,
            described=tuple({key: one.get(key) for key in KEPT_OF_DESCRIBE} for one in described),
            verify_before=self._verified[system.name],
            pids_before=tuple(sorted(pids)),
            start=up.start,
            seen=plain(up.seen),
        )

    def _look_after(self, ready: _Ready) -> SystemFacts:
        system, several = ready.system, ready.up.halted
        with halting(system, several):
            verified = self._verified[system.name] = system.verify()
            pids = [pid for model in system.models for pid in system.list_workers(model)]
            seen = plain(ready.up.member.inspect_after(system))
        return dataclasses.replace(
            ready.facts,
            verify_after=verified,
            pids_after=tuple(sorted(pids)),
            causes=system.list_causes(),
            seen={**ready.facts.seen, **seen},
        )

    def _prepare(self, turn: Turn, system: System) -> Load:
        """Expected answers first: they take CPU time, which no load may have to share."""
        scenario = turn.scenario
        check_model(turn, system)
        key = (scenario.payloads, scenario.model)
        if key not in self._payloads:
            self._payloads[key] = make_payloads(
                scenario.payloads, model=scenario.model, archives=system.archives
            )
        payloads = self._payloads[key]
        judged_by = (system.name, *key)
        if judged_by not in self._expected:
            self._expected[judged_by] = find_expected(system, payloads, self.cache, self.site.say)
        level = system.auto_users(scenario.model) if turn.level == AUTO else float(turn.level)
        return Load(
            system=system,
            scenario=scenario,
            level=level,
            payloads=payloads,
            expected=self._expected[judged_by],
            crew=self.crew,
            watch=turn.watch,
        )

    def _used(self, block: Block) -> list[tuple[tuple[str, str], list[Payload]]]:
        keys = dict.fromkeys((one.scenario.payloads, one.scenario.model) for one in block.turns)
        return [(key, self._payloads[key]) for key in keys if key in self._payloads]

    def _take_turns(
        self, block: Block, ready: Mapping[str, _Ready], loads: Sequence[Load]
    ) -> Iterator[tuple[Trial, Records]]:
        for load in loads:
            if block.warm_up_s and load.system.name not in self._rates:
                yield self._warm_up(load, ready[load.system.name], block.warm_up_s)
        for repeat in range(block.repeats):
            first = repeat % max(1, len(loads))
            for load in (*loads[first:], *loads[:first]):
                yield from self._take_turn(load, ready[load.system.name], repeat, block)

    def _warm_up(self, load: Load, ready: _Ready, seconds: float) -> tuple[Trial, Records]:
        """A trial that is kept and never quoted; how long a round takes is known only after it."""
        plainer = dataclasses.replace(
            load.scenario,
            duration_s=seconds,
            warm_up_s=0.0,
            leave_out_first_round=False,
            least_rounds=0,
            parts=1,
        )
        with halting(load.system, ready.up.halted):
            trial, records = measure_trial(
                dataclasses.replace(load, scenario=plainer, watch=watch_nothing), repeat=0
            )
        self._rates[load.system.name] = find_overall_rate(records)
        return dataclasses.replace(trial, warm_up=True, scenario=load.scenario), records

    def _take_turn(
        self, load: Load, ready: _Ready, repeat: int, block: Block
    ) -> Iterator[tuple[Trial, Records]]:
        """All attempts; the last one counts."""
        name = load.system.name
        for attempt in range(1, block.attempts + 1):
            with halting(load.system, ready.up.halted):
                trial, records = measure_trial(
                    load, repeat=repeat, last_rate=self._rates.get(name, 0.0), attempt=attempt
                )
            self._rates[name] = trial.rate or find_overall_rate(records)
            self._report(f"  {describe_trial(trial, block.repeats)}")
            yield trial, records
            series = Series(
                facts=ready.facts, scenario=load.scenario, level=load.level, trials=(trial,), records=(),
                generated_here=not self.crew.remote,
            )  # fmt: skip
            if not is_disturbed(series):
                return


def list_systems(block: Block) -> list[str]:
    """Names of a block's systems, each once."""
    return list(dict.fromkeys(turn.member.name for turn in block.turns))


def estimate_seconds(block: Block, up: Collection[str]) -> float:
    """Of a block, with the starts of what is not up."""
    turns = sum(one.scenario.warm_up_s + one.scenario.duration_s + TURN_EXTRA_S for one in block.turns)
    return len({*list_systems(block)} - {*up}) * (START_S + block.warm_up_s) + block.repeats * turns


@contextlib.contextmanager
def halting(system: System, halted: bool) -> Iterator[None]:
    """Let a halted system run for a while; one that runs anyway is left alone."""
    with system.resumed() if halted else contextlib.nullcontext():
        yield


def check_model(turn: Turn, system: System) -> None:
    """LoadTestError names what is served."""
    missing = [model for model in turn.scenario.model.split() if model not in system.models]
    if system.models and missing:
        raise LoadTestError(
            f"the model must be one that is served, {', '.join(system.models)}: got {missing[0]} "
            f"({turn.scenario.name})"
        )


def describe_trial(trial: Trial, repeats: int) -> str:
    """A sign of life; figures are quoted by the report alone, after the rules have judged them."""
    unit = "requests/s" if trial.scenario.is_open else "users"
    again = ", measured again" if trial.attempt > 1 else ""
    bad = f", {trial.errors} failed" if trial.errors else ""
    return (
        f"{trial.system}, {trial.level:g} {unit}, repeat {trial.repeat + 1} of {repeats}{again}: "
        f"{trial.requests} requests{bad}"
    )
