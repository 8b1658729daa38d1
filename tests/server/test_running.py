"""A running server is told from leftovers, and no other plan or archive passes for its own."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from config.errors import ConfigError
from config.folders import hold_lock
from server.archives import read_archive
from server.errors import ServerError
from server.processes import JAVA_MAIN
from server.reload import FIXED, check_same_door
from server.rundir import MARK
from server.running import check_is_plan, check_may_plan, identify_archives, is_running
from server.state import READY, STARTING
from tests.server.fakes import SLEEP, make_archive, read_recorded_plan, shown, with_property, write_running


@pytest.fixture
def supervised(planned, tmp_path):
    """A process that looks like the supervisor."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__main__.py").write_text(SLEEP)
    command = [sys.executable, "-m", "server", "supervise"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, MARK: str(planned.path)})
    yield shown(process)
    process.kill()
    process.wait()


def another_plan():
    return with_property(read_recorded_plan(), inference_address="http://127.0.0.1:9999")


def archives_of(folder, note):
    return {"bert": read_archive(make_archive(folder / "bert.mar", name="bert", note=note))}


def test_the_same_plan_is_already_running(planned, lines, supervised, tmp_path):
    archives = archives_of(tmp_path, "as started")
    write_running(planned, READY, archives=identify_archives(archives))
    assert is_running(planned, archives, lines.append) is True


def test_another_plan_is_not_touched(planned, lines, supervised):
    write_running(planned, READY, plan_sha256="another")
    expected = r"already runs from .*, and it has another plan; run `make stop` first, then `make serve`"
    with pytest.raises(ServerError, match=expected):
        is_running(planned, {}, lines.append)
    assert supervised.poll() is None


@pytest.mark.parametrize("text", [None, "{broken"])
def test_an_unknown_start_is_called_that(planned, lines, text, supervised):
    if text:
        planned.state.write_text(text)
    with pytest.raises(ServerError, match=r"server\.json is missing or damaged; run `make stop` first"):
        is_running(planned, {}, lines.append)
    assert supervised.poll() is None


def test_rebuilt_archives_are_named(planned, lines, supervised, tmp_path):
    write_running(planned, READY, archives=identify_archives(archives_of(tmp_path, "as started")))
    expected = r"the archives of bert were rebuilt since it was started; run `make stop` first"
    with pytest.raises(ServerError, match=expected):
        is_running(planned, archives_of(tmp_path, "built again"), lines.append)


@pytest.mark.parametrize("words", [(JAVA_MAIN,), ("model_service_worker.py",)])
def test_leftovers_of_a_killed_start_are_ended(planned, lines, dummy, words):
    left = dummy(planned.path, *words)
    write_running(planned, STARTING)
    assert is_running(planned, {}, lines.append) is False
    assert left.wait(60) == -signal.SIGTERM
    assert lines[0].startswith("an earlier start left 1 process(es) behind: stopped 1 ")


def test_a_start_takes_only_the_plan_it_was_asked_for(planned):
    """Another `make` may have planned between this one's plan and its start, while archives were built."""
    asked = read_recorded_plan()
    planned.plan.write_text(asked.to_json())
    check_is_plan(planned, asked)
    planned.plan.write_text(another_plan().to_json())
    expected = r"plan\.json is not the plan that was asked for: another `make` planned there meanwhile"
    with pytest.raises(ServerError, match=expected):
        check_is_plan(planned, asked)


def test_the_plan_of_a_running_server_may_only_be_made_again(planned, dummy):
    dummy(planned.path, JAVA_MAIN)
    planned.plan.write_text(read_recorded_plan().to_json())
    write_running(planned, READY)
    check_may_plan(planned, read_recorded_plan)
    with pytest.raises(ServerError, match="it has another plan; run `make stop` first"):
        check_may_plan(planned, another_plan)


def test_a_killed_start_may_be_planned_over_and_one_under_way_not(planned, dummy):
    dummy(planned.path, JAVA_MAIN)
    write_running(planned, STARTING)
    check_may_plan(planned, another_plan)
    with hold_lock(planned.path), pytest.raises(ConfigError, match="another start is under way"):
        check_may_plan(planned, another_plan)


@pytest.mark.parametrize("name", FIXED)
def test_what_the_running_server_has_for_good_is_refused(plan, name):
    asked = dataclasses.replace(plan.inputs, **{name: "other"})
    check_same_door(plan.inputs, plan.inputs)
    with pytest.raises(ServerError, match=f"a reload cannot change {name}: got other, running with"):
        check_same_door(plan.inputs, asked)
