"""What is started for the faults, with which arguments, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from loadtest.experiments.chaos import stage as module
from loadtest.experiments.chaos.stage import HAPROXY, NONE, open_stage
from loadtest.systems.fleet import Site
from server.processes import is_alive, read_process
from server.rundir import MARK
from tests.server.fakes import shown


@pytest.fixture
def site(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "resnet50.mar").write_bytes(b"an archive")
    said = []
    return Site(store=tmp_path / "store", folder=tmp_path, first_port=1, say=said.append)


@pytest.fixture
def starts(monkeypatch):
    """A kit server that is a file with a token."""
    found = []

    @contextlib.contextmanager
    def kit_server(name, folder, *, port, model, arguments):
        found.append((name, port, model, list(arguments)))
        (folder / "authorization").write_text("Authorization: Bearer secret\n")
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}")

    monkeypatch.setattr(module, "kit_server", kit_server)
    return found


@pytest.mark.parametrize(
    ("front", "supervised", "asked"),
    [(HAPROXY, True, ["--front", "haproxy"]), (NONE, False, ["--front", "none"])],
)
def test_a_server_has_archives_of_its_own_and_its_front(site, starts, front, supervised, asked):
    with open_stage(site, front, name="server-1", port=4000) as stage:
        assert stage.archive.read_bytes() == b"an archive"
        assert stage.archive.parent != site.store
        assert (stage.port, stage.target.token) == (4000, "secret")
        assert stage.watched.supervised is supervised
        store = str(stage.store)
    assert starts == [(front, 4000, "resnet50", ["--precision", "int8", *asked, "--model-store", store])]
    assert not stage.store.exists()


def test_what_a_stop_left_is_ended_by_its_mark(site, starts):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with open_stage(site, HAPROXY, name="server-1", port=4000) as stage:
        environment = {MARK: str(stage.run.path)}
        command = [sys.executable, "-c", "input()"]
        left = shown(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment))
        seen = read_process(left.pid)
    try:
        assert left.wait(60) != 0
        assert not is_alive(seen)
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.communicate()


def test_what_was_begun_is_undone_with_the_server(site, starts):
    undone = []
    with (
        contextlib.suppress(RuntimeError),
        open_stage(site, HAPROXY, name="server-1", port=4000) as stage,
    ):
        stage.undo.callback(undone.append, True)
        raise RuntimeError
    assert undone == [True]


def test_a_reload_is_asked_with_what_it_was_started_with(site, starts, monkeypatch):
    asked = []
    monkeypatch.setattr(module.Stage, "command", lambda _, *words: asked.append(words))
    with open_stage(site, HAPROXY, name="server-1", port=4000) as stage:
        stage.reload()
    (words,) = asked
    assert words[:2] == ("reload", "--")
    assert words[2:8] == ("--models", "resnet50", "--port", "4000", "--run-dir", str(stage.run.path))
    assert words[8:] == ("--precision", "int8", "--front", "haproxy", "--model-store", str(stage.store))
