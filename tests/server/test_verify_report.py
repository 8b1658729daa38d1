"""The report: a line per model, what differs with its fix, a table, JSON; and the page about the rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from server.verify import compare as comparing
from server.verify import render, verify, verify_instance
from server.verify.collect import SeenInstance
from server.verify.rows import ROWS
from tests.server.seen import plan_foreign, plan_server
from tests.server.test_verify_rows import Server, rendered

__all__ = ["rendered"]
WRONG = {"worker.describe.precision": "bf16"}


@pytest.fixture
def server():
    return Server.of(plan_server())


def test_a_line_for_each_model_and_one_for_the_server_when_all_passed(server):
    lines = render(server.compare(), server.plan).splitlines()
    assert [line.split(":")[0] for line in lines] == ["bert", "resnet50", "server"]
    assert all("2 workers × 1 core, fp32, jemalloc" in line and "46" in line for line in lines[:2])


def test_a_difference_follows_with_expected_actual_and_fix(server):
    text = render(server.but(WRONG).compare(), server.plan)
    found = text.partition("a1 resnet50 100: precision DIFFERS\n")[2].splitlines()
    assert [line.split(":")[0].strip() for line in found] == ["expected", "actual", "fix"]
    assert "1 of 46" in text


def test_a_silent_worker_is_explained_once(server):
    text = render(server.but({"worker.describe": "timed out"}).compare(), server.plan)
    assert text.count("  fix:") == 1


def test_without_torchserve_and_of_other_archives_it_is_said(server):
    lines = render(server.but({"seen.running": False, "seen.models": ()}).compare(), server.plan).splitlines()
    assert "DIFFER" in lines[2]
    foreign = Server.of(plan_foreign())
    (old, _) = render(foreign.compare(), foreign.plan).splitlines()
    assert "1 not checkable" in old


def test_json_holds_all_rows(server):
    result = server.but(WRONG).compare()
    raw = json.loads(render(result, server.plan, format="json"))
    assert raw["passed"] is False
    assert len(raw["rows"]) == len(result.rows)
    keys = {"instance", "model", "pid", "name", "state", "expected", "actual", "source", "fix"}
    assert {frozenset(row) for row in raw["rows"]} == {frozenset(keys)}


@pytest.mark.parametrize("columns", [100, 120, 160, 240])
def test_the_table_has_every_row_and_fits(server, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = render(server.compare(), server.plan, verbose=True).partition("\n\n")[0].splitlines()
    assert max(len(line) for line in table) <= columns
    names = {row.name for row in ROWS if row.kit is not False}
    assert all(any(f"  {name}  " in line for line in table) for name in names)
    # Workers that show the same share a row.
    assert len([line for line in table if " precision " in line]) == 2
    assert len([line for line in table if "CPU affinity" in line]) == 4


def test_all_instances_are_verified_or_one_of_them(plan, run, server, monkeypatch):
    """Each beside the others."""
    two = replace(plan, instances={name: replace(one, models={}) for name, one in plan.instances.items()})
    monkeypatch.setattr(comparing, "collect_proxy", lambda *_: server.proxy)
    monkeypatch.setattr(comparing, "collect_instance", lambda *_: SeenInstance(running=False, orphans=()))
    assert {one.instance for one in verify(two, run).rows} == {"", "a1", "a2"}
    assert {one.instance for one in verify_instance(two, "a2", run).rows} == {"a2"}
