"""A kit server is planned and started by its own commands, and its refusals keep the kit's own reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError, RefusedError
from loadtest.systems import kit as module
from loadtest.systems.fleet import Site
from loadtest.systems.kit import kit
from loadtest.systems.system import System
from server.state import Failure, write_state


@pytest.fixture
def commands(monkeypatch):
    """What is called instead of the kit's commands; `start` fails as told."""
    log = SimpleNamespace(called=[], failure=None, stopped=[])

    def call(arguments):
        log.called.append(" ".join(arguments))
        if arguments[0] == "server" and log.failure:
            write_state(log.run / "failure.json", log.failure)
            raise LoadTestError("python -m server start failed")

    def make_system(name, run, _plan, *, how):
        log.run = run.path
        return System(name=name, models=("bert",), run=run, how=how)

    monkeypatch.setattr(module, "_call", call)
    monkeypatch.setattr(module, "read_plan", lambda _: None)
    monkeypatch.setattr(module, "make_kit_system", make_system)
    monkeypatch.setattr(module, "read_start", lambda _system: {"worker_seconds": 1.0})
    monkeypatch.setattr(module, "stop", lambda run: log.stopped.append(run.path))
    return log


def make_site(tmp_path):
    return Site(store=tmp_path / "store", folder=tmp_path, first_port=9000, say=lambda _: None)


def test_it_is_planned_started_and_stopped_in_a_place_of_its_own(commands, tmp_path):
    with kit("int8", "bert", ["--precision", "int8"]).open(make_site(tmp_path)) as system:
        assert not commands.stopped
        assert (system.name, system.how) == ("int8", "--precision int8")
        assert system.start == {"worker_seconds": 1.0}
    place = tmp_path / "kit-1"
    assert commands.called == [
        f"config --models bert --port 9100 --run-dir {place} --instances 1 --precision int8 "
        f"--model-store {tmp_path}/store",
        f"server start --run-dir {place}",
    ]
    assert commands.stopped == [place]


def test_a_variant_of_the_archive_is_served_from_a_store_of_its_own(commands, monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(module, "vary_archive", lambda *where, model: made.append((*where, model)))
    change = {"token_lengths": [150]}
    with kit("padded", "bert", [], archive=change).open(make_site(tmp_path)) as system:
        assert system.how == "archive with {'token_lengths': [150]}"
    assert made == [(tmp_path / "store" / "bert.mar", tmp_path / "kit-1-store", change)]
    assert commands.called[0].endswith(f"--model-store {tmp_path}/kit-1-store")


def test_a_start_that_fails_is_refused_in_the_kits_own_words_and_cleared_away(commands, tmp_path):
    commands.failure = Failure(cause="no memory for the shapes", step="trace")
    with (
        pytest.raises(RefusedError) as problem,
        kit("kit", "bert", []).open(make_site(tmp_path)),
    ):
        pytest.fail("it must not come up")
    assert problem.value.reason == "trace: no memory for the shapes"
    assert commands.stopped == [tmp_path / "kit-1"]


def test_what_cannot_be_planned_is_refused_before_any_start(tmp_path):
    with (
        pytest.raises(RefusedError) as problem,
        kit("kit", "bert", ["--precision", "int9"]).open(make_site(tmp_path)),
    ):
        pytest.fail("it must not come up")
    assert "int9" in problem.value.reason
