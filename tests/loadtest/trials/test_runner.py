"""Systems take turns, what is finished is kept, and nothing stays up; systems and loads are made up here."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import pytest

from loadtest.errors import LoadTestError, RefusedError
from loadtest.results.kept import read_kept
from loadtest.systems.fleet import Member, Site
from loadtest.systems.system import System
from loadtest.trials import runner
from loadtest.trials.block import Block, Experiment, Turn
from tests.loadtest.making import QUIET, make_rows, make_scenario, make_trial
from tests.loadtest.simulated import EXPECTED

SCENARIO = make_scenario(payloads="one-text")


@dataclass
class World:
    """What was done, in order."""

    log: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    disturbed: int = 0
    """So many of the next trials meet a busy machine."""
    fails_at: int = -1


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(runner, "find_expected", lambda *_: EXPECTED)
    monkeypatch.setattr(runner, "measure_trial", lambda load, **how: measure(world, load, **how))
    return world


def measure(world, load, *, repeat, last_rate=0.0, attempt=1):
    world.log.append(f"{load.system.name}{'' if load.scenario.leave_out_first_round else '~'}")
    if len(world.log) == world.fails_at:
        raise LoadTestError("the power went")
    busy = world.disturbed > 0
    world.disturbed -= busy
    cpu = replace(QUIET, stolen=100.0) if busy else QUIET
    trial = make_trial(load.system.name, repeat=repeat, attempt=attempt, cpu=cpu, scenario=load.scenario)
    return trial, make_rows()


class FakeSystem(System):
    """Says when it is halted and goes on."""

    def halt(self):
        self.models_log.append(f"{self.name} halts")

    def resume(self):
        self.models_log.append(f"{self.name} runs")

    def verify(self):
        return {"good": True, "findings": []}


def make_member(name, world, refused=""):
    states: list[str] = []
    world.states = {**getattr(world, "states", {}), name: states}

    @contextlib.contextmanager
    def start(_):
        if refused:
            raise RefusedError("long text", refused)
        states.append(f"{name} up")
        system = FakeSystem(name=name, models=())
        object.__setattr__(system, "models_log", states)
        yield system
        states.append(f"{name} down")

    return Member(
        name=name, open=start, inspect=lambda _: {"seen": name}, inspect_after=lambda _: {"late": 1}
    )


def make_experiment(members, *, blocks=1, repeats=3, warm_up_s=0.0, asked=None):
    scenario = replace(SCENARIO, leave_out_first_round=True)

    def next_block(kept):
        for number in range(blocks):
            if kept.find(f"block-{number}") is None:
                turns = tuple(Turn(member=one, scenario=scenario, level=16) for one in members[number:])
                return Block(name=f"block-{number}", turns=turns, repeats=repeats, warm_up_s=warm_up_s)
        return None

    return Experiment(kind="test", name="test", asked=asked or {}, next_block=next_block)


def run(tmp_path, world, experiment, **more):
    site = Site(store=tmp_path, folder=tmp_path / "site", first_port=19000, say=world.lines.append)
    return runner.run_experiment(experiment, site, results=tmp_path / "results", **more)


def test_the_order_moves_on_with_each_repeat(tmp_path, world):
    kept = run(tmp_path, world, make_experiment([make_member(name, world) for name in "abc"]))
    assert "".join(world.log) == "abc" + "bca" + "cab"
    assert read_kept(kept.folder).blocks == kept.blocks


def test_loads_of_several_systems_take_turns_as_the_block_lists_them(tmp_path, world):
    a, b, c = (make_member(name, world, "not here" if name == "b" else "") for name in "abc")
    turns = tuple(Turn(member=one, scenario=SCENARIO, level=16) for one in (a, b, c, a, b, c))
    block = Block(name="block", turns=turns, repeats=2)
    every = Experiment(
        kind="test", name="test", asked={}, next_block=lambda kept: None if kept.find("block") else block
    )
    run(tmp_path, world, every)
    assert "".join(world.log).replace("~", "") == "acac" + "caca"


def test_each_system_is_warmed_up_once_while_it_is_up(tmp_path, world):
    members = [make_member(name, world) for name in "abc"]
    kept = run(tmp_path, world, make_experiment(members, blocks=2, repeats=1, warm_up_s=2.0))
    assert "".join(world.log) == "a~b~c~" + "abc" + "bc"
    (series, *_) = kept.list_series(kept.blocks[0])
    assert (len(series.trials), kept.blocks[0].trials[0].warm_up) == (1, True)


def test_systems_are_halted_but_for_their_turns_and_taken_down(tmp_path, world):
    members = [make_member(name, world) for name in "ab"]
    run(tmp_path, world, make_experiment(members, blocks=2, repeats=1))
    a, b = world.states["a"], world.states["b"]
    assert (a[0], a[-1], b[-1]) == ("a up", "a down", "b down")
    assert a.count("a up") == b.count("b up") == 1
    assert a[-2] == "a halts"
    # Alone in the second block, it runs on.
    assert b[-2] == "b runs"


def test_a_disturbed_trial_is_measured_again_once_and_both_are_kept(tmp_path, world):
    world.disturbed = 1
    kept = run(tmp_path, world, make_experiment([make_member("a", world)], repeats=2))
    assert [(one.repeat, one.attempt) for one in kept.blocks[0].trials] == [(0, 1), (0, 2), (1, 1)]
    assert any("measured again" in line for line in world.lines)
    world.disturbed = 9
    kept = run(tmp_path, world, make_experiment([make_member("a", world)], repeats=1))
    assert [one.attempt for one in kept.blocks[0].trials] == [1, 2]


def test_what_the_kit_refuses_is_kept_with_its_reason_and_the_others_are_measured(tmp_path, world):
    members = [make_member("a", world), make_member("b", world, refused="INT8\n needs IPEX")]
    kept = run(tmp_path, world, make_experiment(members, repeats=1))
    assert (kept.blocks[0].refused, world.log) == ({"b": "INT8 needs IPEX"}, ["a"])


def test_what_is_seen_before_and_after_is_kept(tmp_path, world):
    kept = run(tmp_path, world, make_experiment([make_member("a", world)]))
    facts = kept.blocks[0].systems["a"]
    assert facts.seen == {"seen": "a", "late": 1}
    assert facts.verify_before == facts.verify_after == {"good": True, "findings": []}


def test_an_experiment_that_is_cut_off_goes_on_where_it_stopped(tmp_path, world):
    members = [make_member(name, world) for name in "ab"]
    world.fails_at = 3
    with pytest.raises(LoadTestError, match="the power went"):
        run(tmp_path, world, make_experiment(members, blocks=2, repeats=1))
    (folder,) = (tmp_path / "results").iterdir()
    assert world.states["a"][-1] == "a down"
    world.log.clear()
    world.fails_at = -1
    kept = run(tmp_path, world, make_experiment(members, blocks=2, repeats=1), resume=folder)
    assert (world.log, len(kept.blocks)) == (["b"], 2)


def test_a_resumed_experiment_must_be_the_same(tmp_path, world):
    members = [make_member("a", world)]
    kept = run(tmp_path, world, make_experiment(members, asked={"host": {"cpus": 2}, "seconds": 3}))
    changed = make_experiment(members, asked={"host": {"cpus": 4}, "seconds": 3})
    with pytest.raises(
        LoadTestError, match=r"everything is as it was:\n  host\.cpus: was 2, is 4\nstart a new"
    ):
        run(tmp_path, world, changed, resume=kept.folder)


def test_a_model_that_is_not_served_is_named(tmp_path, world):
    system = FakeSystem(name="a", models=("resnet50",))
    object.__setattr__(system, "models_log", [])
    member = Member(name="a", open=lambda _: contextlib.nullcontext(system))
    with pytest.raises(LoadTestError, match="one that is served, resnet50: got bert"):
        run(tmp_path, world, make_experiment([member]))
