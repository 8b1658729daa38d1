"""Servers take turns, what is finished is kept, and nothing stays up; servers and loads are made up here."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

import pytest

from loadtest import bench as module
from loadtest.bench import Bench, open_bench
from loadtest.drivers import Outcome
from loadtest.errors import CapacityError, LoadTestError, NotMeasuredError, RejectedError
from loadtest.results import read_result
from loadtest.servers.base import Running, Server, Testbed
from loadtest.validity import find_findings
from tests.loadtest.making import ANSWER, GOOD, QUIET, list_rows, make_load
from tests.loadtest.virtual import EXPECTED
from tests.server.fakes import make_archive

LOAD = make_load(payloads="one-text", leave_out_first_round=True)


@dataclass
class World:
    """What was done, in order."""

    log: list[str] = field(default_factory=list)
    """Loads: the server's name, with ~ where it is a warm-up."""
    states: dict[str, list[str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    disturbed: int = 0
    """So many of the next windows meet a busy machine."""
    fails_at: int = -1


@dataclass(frozen=True, kw_only=True)
class FakeServer(Running):
    """Says when it is halted and goes on."""

    world: World
    verified: dict = field(default_factory=lambda: GOOD)

    def halt(self):
        self.world.states[self.name].append("halts")

    def resume(self):
        self.world.states[self.name].append("runs")

    def verify(self):
        return self.verified


@pytest.fixture
def world(monkeypatch):
    world = World()

    def send(turn, load, *, watch):
        name = turn.up.running.name
        world.log.append(f"{name}{'' if load.leave_out_first_round else '~'}")
        if len(world.log) == world.fails_at:
            raise LoadTestError("the power went")
        busy = world.disturbed > 0
        world.disturbed -= busy
        rows = list_rows(20.0)
        outcome = Outcome(rows=rows, answers=[ANSWER], wall_zero=0.0, cpu_shares=(0.1,))
        watched = {}
        if watch:
            with watch(turn.up.running) as looking:
                watched = looking.cut(0.0, 1.0)
        return outcome, replace(QUIET, stolen=100.0) if busy else QUIET, watched

    monkeypatch.setattr(module, "find_expected", lambda *_: EXPECTED)
    monkeypatch.setattr(module.Turn, "_send", send)
    return world


def make_server(name, world, *, rejected="", models=(), archives=None, **more):
    @contextlib.contextmanager
    def start(_):
        if rejected:
            raise RejectedError("long text", rejected)
        world.states.setdefault(name, []).append("up")
        yield FakeServer(name=name, models=models, archives=archives or {}, world=world)
        world.states[name].append("down")

    return Server(name=name, open=start, **more)


@contextlib.contextmanager
def opened(tmp_path, world, *, asked=None, resume=None):
    testbed = Testbed(store=tmp_path, folder=tmp_path / "testbed", first_port=19000, say=world.lines.append)
    with open_bench(
        "test", "test", asked or {}, testbed, results=tmp_path / "results", resume=resume
    ) as bench:
        yield bench


def turns(bench, servers, name="block", **how):
    return bench.turns(name, [(one, LOAD) for one in servers], **{"repeats": 3, **how})


def test_the_order_moves_on_with_each_repeat_and_what_is_kept_comes_back(tmp_path, world):
    with opened(tmp_path, world) as bench:
        block = turns(bench, [make_server(name, world) for name in "abc"])
    assert "".join(world.log) == "abc" + "bca" + "cab"
    read = read_result(bench.kept.folder).find_block("block")
    for one, other in zip(block.series, read.series, strict=True):
        assert replace(one, rows=()) == replace(other, rows=())
        assert [len(rows) for rows in one.rows] == [len(rows) for rows in other.rows] == [200] * 3
    assert [one.server for one in block.series] == ["a", "b", "c"]
    assert block.series[0].windows[0].answers.checked == 200


def test_loads_of_several_servers_take_turns_as_they_are_listed(tmp_path, world):
    a, b, c = (make_server(name, world, rejected="not here" * (name == "b")) for name in "abc")
    with opened(tmp_path, world) as bench:
        block = turns(bench, (a, b, c, a, b, c), repeats=2)
    assert "".join(world.log) == "acac" + "caca"
    assert (len(block.series), block.rejected) == (4, {"b": "not here"})


def test_each_server_is_warmed_up_once_while_it_is_up(tmp_path, world):
    servers = [make_server(name, world) for name in "abc"]
    with opened(tmp_path, world) as bench:
        turns(bench, servers, repeats=1, warm_up_s=2.0)
        turns(bench, servers[1:], "next", repeats=1, warm_up_s=2.0)
    assert "".join(world.log) == "a~b~c~" + "abc" + "bc"


def test_servers_are_halted_but_for_their_turns_and_taken_down(tmp_path, world):
    servers = [make_server(name, world) for name in "ab"]
    with opened(tmp_path, world) as bench:
        turns(bench, servers, repeats=1)
        turns(bench, servers[1:], "next", repeats=1)
    a, b = world.states["a"], world.states["b"]
    assert a[0] == b[0] == "up"
    assert a[-1] == b[-1] == "down"
    assert a.count("up") == b.count("up") == 1
    assert a[-2] == "halts"
    assert b[-2] == "runs"  # alone in the second block, it runs on
    assert a[1:-1] == ["halts"] + ["runs", "halts"] * 3  # to be looked at, for its turn, to be looked at


def test_a_disturbed_window_is_measured_again_once(tmp_path, world):
    server = make_server("a", world)
    with opened(tmp_path, world) as bench:
        world.disturbed = 1
        block = turns(bench, [server], repeats=2)
        assert [(one.repeat, one.attempt) for one in block.series[0].windows] == [(0, 2), (1, 1)]
        world.disturbed = 9
        block = turns(bench, [server], "busy", repeats=1)
        assert [one.attempt for one in block.series[0].windows] == [2]
    assert any("again" in line for line in world.lines)


def test_what_the_kit_rejects_is_an_error_where_it_is_measured_alone(tmp_path, world):
    with opened(tmp_path, world) as bench, pytest.raises(RejectedError, match="b: INT8 needs IPEX"):
        bench.measure("alone", make_server("b", world, rejected="INT8\n needs IPEX"), LOAD)


def test_what_looks_on_is_kept_with_the_window_it_saw(tmp_path, world):
    class Looking:
        def cut(self, begin, end):
            return {"seconds": end - begin}

    with opened(tmp_path, world) as bench:
        series = bench.measure(
            "one", make_server("a", world), LOAD, watch=lambda _: contextlib.nullcontext(Looking())
        )
    assert series.windows[0].watched == {"seconds": 1.0}
    assert series.facts.verify_before == series.facts.verify_after == GOOD


def test_what_was_cut_off_goes_on_where_it_stopped(tmp_path, world):
    servers = [make_server(name, world) for name in "ab"]
    world.fails_at = 3
    with opened(tmp_path, world) as bench:
        turns(bench, servers, repeats=1)
        with pytest.raises(LoadTestError, match="the power went"):
            turns(bench, servers[1:], "next", repeats=1)
    assert world.states["a"][-1] == "down"
    assert bench.kept.list_blocks() == ["block"]
    world.log.clear()
    with opened(tmp_path, world, resume=bench.kept.folder) as bench:
        turns(bench, servers, repeats=1)
        turns(bench, servers[1:], "next", repeats=1)
    assert (world.log, bench.kept.list_blocks()) == (["b"], ["block", "next"])


def test_a_bench_that_only_reads_measures_nothing(tmp_path, world):
    servers = [make_server("a", world)]
    with opened(tmp_path, world) as bench:
        turns(bench, servers)
    reading, before = Bench(bench.kept), [*world.log]
    assert turns(reading, servers).series[0].rates == [20.0] * 3
    with pytest.raises(NotMeasuredError, match="was interrupted before its block next"):
        turns(reading, servers, "next")
    assert world.log == before


def test_a_result_is_resumed_only_where_the_same_is_asked(tmp_path, world):
    with opened(tmp_path, world, asked={"host": {"cpus": 2}, "seconds": 3}) as bench:
        pass
    with (
        pytest.raises(
            LoadTestError, match=r"everything is as it was:\n  host\.cpus: was 2, is 4\nstart a new"
        ),
        opened(tmp_path, world, asked={"host": {"cpus": 4}, "seconds": 3}, resume=bench.kept.folder),
    ):
        pytest.fail("it must not go on")


def test_the_capacity_is_a_closed_loops_rate_and_none_where_it_is_in_doubt(tmp_path, world):
    load = make_load(payloads="one-text", leave_out_first_round=True, name="open")
    with opened(tmp_path, world) as bench:
        assert bench.capacity(make_server("a", world), load) == pytest.approx(20.0, rel=0.05)
        world.disturbed = 9
        with pytest.raises(CapacityError, match="the host gave CPU time to others"):
            bench.capacity(make_server("a", world), replace(load, name="busy"))


def test_of_any_model_what_suits_it_is_sent_and_one_payload_shows_no_mix_up(tmp_path, world, monkeypatch):
    monkeypatch.setattr(module, "find_expected", lambda *_: replace(EXPECTED, distinguishable_pairs=None))
    example = {"file": "example.txt", "content_type": "application/json", "expected": {"boxes": []}}
    archive = make_archive(tmp_path / "any.mar", name="any", text="[1]", example=example)
    server = make_server("a", world, models=("any",), archives={"any": archive})
    with opened(tmp_path, world) as bench:
        load = replace(LOAD, models=("any",), payloads="")
        block = bench.turns("block", [(server, replace(load, payloads=asked)) for asked in ("", "one-text")])
    assert [one.load.payloads for one in block.series] == ["example", "one-text"]
    (sent,) = block.payloads["example"]
    assert (sent["content_type"], sent["bytes"]) == ("application/json", 3)
    kit = replace(block.series[0], facts=replace(block.series[0].facts, is_kit=True))
    assert [str(one) for one in find_findings(kit)] == [
        "note: a mix-up of answers cannot be seen (one payload was sent again and again); "
        "send several: PAYLOADS=, a folder with requests of your own"
    ]


def test_a_model_that_is_not_served_is_named(tmp_path, world):
    server = make_server("a", world, models=("resnet50",))
    with opened(tmp_path, world) as bench, pytest.raises(LoadTestError, match="served, resnet50: got bert"):
        turns(bench, [server])


def test_a_server_that_memory_does_not_hold_is_not_started(tmp_path, world, monkeypatch):
    monkeypatch.setattr(module, "read_available_mib", lambda: 1000.0)
    server = make_server("a", world, memory_mib=1001)
    with (
        opened(tmp_path, world) as bench,
        pytest.raises(LoadTestError, match=r"a needs 1001 MiB .*: got 1000 MiB"),
    ):
        turns(bench, [server])
    assert world.states == {}
