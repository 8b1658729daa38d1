"""Faults in turn: what is undone, kept and judged, whatever becomes of one of them; and the page of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from loadtest.drivers.records import make_records
from loadtest.errors import LoadTestError
from loadtest.experiments.chaos import experiment, load
from loadtest.experiments.chaos.evidence import make_rows, read_evidence
from loadtest.experiments.chaos.registry import FAULTS, Fault
from loadtest.experiments.chaos.row import NOTHING, Look, Promise
from loadtest.experiments.chaos.stage import HAPROXY, NONE, NotDoneError, Stage
from loadtest.report import chaos as report
from loadtest.report import make_section
from loadtest.report.docs import write_docs
from loadtest.report.markdown import render_section
from loadtest.results.kept import read_kept
from loadtest.systems.fleet import Site
from server.errors import ServerError
from tests.loadtest.making import HOST


class FakeWatched:
    """Whole, but for as many looks after a fault as it was told."""

    def __init__(self):
        self.missing = 0

    def look(self):
        self.missing -= 1
        return Look(at=time.time(), phase="ready", full=self.missing < 0, workers=2, planned=2)

    def wait_until_full(self, _seconds):
        return self.missing < 100


class FakeStage(Stage):
    """Its verify says what it was told."""

    good = True

    def verify(self):
        return self.good, () if self.good else ("resnet50 7: cpus: asked 0, got 1",)


def make_stage(tmp_path):
    return FakeStage(
        system=SimpleNamespace(url="http://127.0.0.1:1", auto_users=lambda _: 8),
        run=None, watched=FakeWatched(), target=None, store=tmp_path, asked=(),
    )  # fmt: skip


class FakeLoad:
    """A hundred good requests a second, until it is told that it was enough."""

    def __init__(self):
        self.zero, self.asked = time.time(), []

    def finish(self):
        due = np.arange(0, time.time() - self.zero, 0.01)
        return make_records([(0, at, at, at + 0.02, 200, -1, "") for at in due], ())


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Everything but the servers and the load; what was started and asked stands in it."""
    found = SimpleNamespace(stages=[], rates=[], said=[])

    @contextlib.contextmanager
    def sending(_target, *, rate, deadline_ms, seed):
        found.rates.append((rate, deadline_ms))
        yield FakeLoad()

    @contextlib.contextmanager
    def open_stage(_site, front, *, name, port, volume, clock):
        stage = make_stage(tmp_path)
        found.stages.append((front, name, port, volume, clock, stage))
        yield stage

    monkeypatch.setattr(load, "sending", sending)
    monkeypatch.setattr(load, "find_peak", lambda *_, **__: 100.0)
    monkeypatch.setattr(experiment, "open_stage", open_stage)
    monkeypatch.setattr(experiment, "read_archive", lambda _: SimpleNamespace(archive_id="abc"))
    monkeypatch.setattr("loadtest.results.kept.read_host", lambda: HOST)
    monkeypatch.setattr("loadtest.experiments.chaos.watched.LOOK_S", 0.01)
    for name, seconds in (("CALM_S", 0.05), ("LEAST_S", 0.05), ("TAIL_S", 0.02), ("STEP_S", 0.01)):
        monkeypatch.setattr(experiment, name, seconds)
    found.site = Site(store=tmp_path, folder=tmp_path, first_port=1000, say=found.said.append)
    return found


@pytest.fixture
def run(world, monkeypatch, tmp_path):
    def run(*faults, names=()):
        monkeypatch.setattr("loadtest.experiments.chaos.registry.FAULTS", faults)
        kept = experiment.run_chaos(world.site, results=tmp_path / "results", names=names)
        return read_kept(kept.folder)

    return run


def fault(name="a", do=lambda _: None, **changes):
    return Fault(name=name, title=f"about {name}", do=do, **changes)


def test_each_fault_is_done_at_its_rate_and_kept_with_its_requests(run, world):
    kept = run(fault("a"), fault("b", share=1.5, deadline_ms=1000), fault("c", front=NONE, promise=NOTHING))
    assert world.rates == [(60.0, 10_000), (150.0, 1000), (60.0, 10_000)]
    fronts = [(HAPROXY, "server-1-haproxy", 1100), (NONE, "server-2-none", 1200)]
    assert [stage[:3] for stage in world.stages] == fronts
    rows = make_rows(kept)
    assert [(row.fault, row.front, row.verdict) for row in rows] == [
        ("a", HAPROXY, "kept"), ("b", HAPROXY, "kept"), ("c", NONE, "seen"),
    ]  # fmt: skip
    assert all(row.sent > 5 for row in rows)
    assert all(verdict.met for verdict in experiment.judge(kept))


def test_the_load_goes_on_until_all_is_well(run, world):
    def lose(stage):
        stage.watched.missing = 20

    (row,) = make_rows(run(fault(do=lose)))
    assert row.full_s > 0
    assert row.verdict == "kept"


def test_what_does_not_come_back_is_broken_and_the_next_fault_gets_a_new_server(run, world, monkeypatch):
    def lose(stage):
        stage.watched.missing = 10**6

    kept = run(fault("a", lose, promise=Promise(full_s=0.2)), fault("b"))
    rows = make_rows(kept)
    assert [row.verdict for row in rows] == ["BROKEN", "kept"]
    assert rows[0].broken == ("at full strength never while it was looked at, promised: 0.2 s",)
    assert [stage[1] for stage in world.stages] == ["server-1-haproxy", "server-2-haproxy"]
    assert [verdict.met for verdict in experiment.judge(kept)] == [False, True]


@pytest.mark.parametrize("problem", [OSError("gone"), LoadTestError("no worker"), ServerError("no plan")])
def test_what_was_done_is_undone_whatever_happens(run, problem):
    undone = []

    def fail(stage):
        stage.undo.callback(undone.append, True)
        raise problem

    (row, other) = make_rows(run(fault("a", fail), fault("b")))
    assert undone == [True]
    assert row.broken[0] == f"could not go on: {type(problem).__name__}: {problem}"
    assert other.verdict == "kept"


def test_a_fault_that_cannot_be_done_is_named_and_breaks_nothing(run, world):
    def cannot(_):
        raise NotDoneError("needs tmpfs")

    kept = run(fault("a", prepare=cannot), fault("b", do=cannot))
    assert [(row.verdict, row.not_done) for row in make_rows(kept)] == [("not done", "needs tmpfs")] * 2
    assert experiment.judge(kept) == []
    assert world.rates == [(60.0, 10_000)]  # no load for what could not be prepared


def test_verify_is_asked_where_it_is_promised(run, world, monkeypatch):
    monkeypatch.setattr(FakeStage, "good", False)
    rows = make_rows(run(fault("a"), fault("b", promise=Promise(verified=False))))
    assert [row.verified for row in rows] == [False, None]
    assert rows[0].broken == ("verify: resnet50 7: cpus: asked 0, got 1",)


def test_the_time_is_bounded_and_what_is_left_is_named(run, world, monkeypatch):
    monkeypatch.setattr(experiment, "LAST_BEGIN_S", {HAPROXY: 0.1, NONE: 60.0})
    faults = (fault("a"), fault("b"), fault("c", until_fault=True), fault("d", front=NONE))
    rows = make_rows(run(*faults))
    assert [row.verdict for row in rows] == ["kept", "not done", "kept", "kept"]
    assert rows[1].not_done == "no time was left: EXPERIMENT=b"


def test_a_server_gets_what_its_faults_need(run, world):
    run(fault("a", needs_volume=True), fault("b", needs_clock=True))
    assert [stage[3:5] for stage in world.stages] == [(True, True)]


def test_a_fault_without_its_row_is_no_success(run, tmp_path):
    kept = run(fault("a"))
    for file in kept.folder.glob("fault-*"):
        file.unlink()
    assert [verdict.met for verdict in experiment.judge(kept)] == [False]


def test_a_row_is_made_from_what_is_kept_alone(run):
    kept = run(fault("a"))
    ((evidence, records),) = read_evidence(kept.folder)
    assert evidence.looks
    assert 0.0 < evidence.fault_s <= evidence.fault_ended_s
    assert len(records) == make_rows(kept)[0].sent
    (file,) = kept.folder.glob("fault-*.json")
    file.write_text(json.dumps({"fault": "a"}))
    with pytest.raises(LoadTestError, match="not what chaos keeps"):
        read_evidence(kept.folder)


@pytest.fixture
def all_kept(run):
    """Every fault there is, done by nobody."""

    def cannot(_):
        raise NotDoneError("needs tmpfs")

    return run(
        *(
            dataclasses.replace(one, do=lambda _: None, prepare=cannot if one.name == "idle" else None)
            for one in FAULTS
        )
    )


def test_the_section_has_a_row_for_each_and_both_figures_of_overload(all_kept):
    section = make_section(all_kept)
    assert section.whole
    assert section.valid
    faults, overload = section.tables
    assert len(faults.rows) == len(FAULTS)
    assert [row[0] for row in overload.rows] == ["the door's", "TorchServe's own"]
    text = render_section(section)
    assert "| disk-full " in text
    assert "| idle " in text
    assert "not done: needs tmpfs" in text


def test_a_generator_that_was_late_makes_the_section_void(all_kept):
    rows = [dataclasses.replace(row, lag_p99_ms=900.0) for row in make_rows(all_kept)[1:2]]
    (doubt,) = report.list_doubts(rows)
    assert doubt.invalid
    assert "900 ms late" in doubt.state


def test_some_faults_alone_are_not_the_whole(run, monkeypatch):
    assert not make_section(run(fault("a"))).whole


def test_the_page_keeps_what_is_written_by_hand(all_kept, tmp_path):
    page = tmp_path / "docs" / report.PAGE
    page.parent.mkdir()
    page.write_text(f"# Mine\n\nwords\n\n{report.BEGIN}\nold\n{report.END}\n\nmore words\n")
    for _ in range(2):
        assert page in write_docs([all_kept], page.parent)
    text = page.read_text()
    assert text.startswith(f"# Mine\n\nwords\n\n{report.BEGIN}\n\n## Faults under load")
    assert text.endswith(f"{report.END}\n\nmore words\n")
    assert "old" not in text
    assert text.count("| worker-kill ") == 1
    assert "(reliability.md)" in (page.parent / "results.md").read_text()
    page.write_text("# Mine\n")
    with pytest.raises(LoadTestError, match=r"reliability\.md must have the marks"):
        write_docs([all_kept], page.parent)


def test_a_page_that_is_not_there_is_made(all_kept, tmp_path):
    (page,) = report.write_page(all_kept, tmp_path)
    assert page.read_text().startswith("# Reliability")


def test_the_page_of_the_tree_has_the_marks():
    text = (load.Path(__file__).resolve().parents[4] / "docs" / report.PAGE).read_text()
    assert text.index(report.BEGIN) < text.index(report.END)
