"""What is seen of a server, from recorded states of its supervisor and processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.experiments.chaos.watched import (
    NOBODY,
    Marked,
    Watched,
    find_all,
    find_places,
    find_strays,
    make_look,
    parse_supervisor,
    read_supervisor,
    watching,
)
from server.processes import Process
from server.rundir import MARK, RunDir
from tests.server.fakes import shown

SCRIPT = "/venv/lib/ts/model_service_worker.py"
LAUNCHER = ("python", "-m", "torch.backends.xeon.run_cpu", "--core_list", "0", SCRIPT)
JAVA = ("java", "-Xmx1g", "org.pytorch.serve.ModelServer", "--ts-config-file", "x")
RECORD = {
    "schema": 1, "pid": 100, "phase": "ready", "since": "2026-01-02T03:04:05+00:00", "message": "",
    "door": {"phase": "ready", "pid": 101, "restarts": 1, "health": "",
             "causes": [{"at": "2026-01-02T03:04:05+00:00", "cause": "HAProxy ended (SIGKILL)"}]},
    "instances": {name: {"phase": "ready", "pid": pid, "restarts": 0, "causes": [], "health": "ready"}
                  for name, pid in (("a1", 110), ("a2", 120))},
}  # fmt: skip
"""As the supervisor writes it, with two instances."""


def mark(place, pid, parent, command, *, stopped=False, ancestors=None):
    process = Process(pid=pid, start_ticks=1, parent_pid=parent, command=tuple(command))
    line = (parent, 100, 1) if ancestors is None else ancestors
    return Marked(place=place, process=process, stopped=stopped, ancestors=line)


def list_processes():
    """A door and two instances, each a keeper, a JVM, a launcher and its worker."""
    found = [mark("", 100, 1, ["python", "-m", "server", "supervise"], ancestors=(1,))]
    found.append(mark("", 101, 100, ["/usr/sbin/haproxy", "-db", "-f", "haproxy.cfg"]))
    for place, first in (("a1", 110), ("a2", 120)):
        found.append(mark(place, first, 100, ["python", "-m", "server", "start", "--foreground"]))
        found.append(mark(place, first + 1, first, JAVA))
        found.append(mark(place, first + 2, first + 1, LAUNCHER))
        found.append(mark(place, first + 3, first + 2, ["python", SCRIPT, "--sock-type", "unix"]))
    return found


READY = {"a1": [113], "a2": [123]}


def change(pid, **changes):
    """The same processes, but for one."""
    import dataclasses

    return [
        dataclasses.replace(one, **changes) if one.process.pid == pid else one for one in list_processes()
    ]


def drop(*pids):
    return [one for one in list_processes() if one.process.pid not in pids]


def look(marked=None, *, ready=READY, record=RECORD, planned=2, supervised=True):
    supervisor = parse_supervisor(json.dumps(record))
    return make_look(
        supervisor, list_processes() if marked is None else marked, ready, planned, supervised=supervised
    )


def test_a_whole_server_is_at_full_strength():
    seen = look()
    assert (seen.full, seen.workers, seen.door, seen.strays) == (True, 2, True, ())
    assert (seen.phase, seen.instances, seen.restarts) == ("ready", {"a1": "ready", "a2": "ready"}, 1)


@pytest.mark.parametrize(
    ("marked", "ready"),
    [
        (drop(113), READY),  # killed; TorchServe has not seen it yet
        (list_processes(), {"a1": [], "a2": [123]}),  # a new one that still loads
        (change(113, stopped=True), READY),
        (drop(112), READY),  # computes on for nobody
        (drop(111, 112, 113), {"a2": [123]}),
        (drop(101), READY),
        (change(101, stopped=True), READY),
    ],
)
def test_whatever_is_missing_is_seen(marked, ready):
    assert not look(marked, ready=ready).full


@pytest.mark.parametrize(
    ("phase", "a1", "full"),
    [
        ("degraded", "ready", False),
        ("ready", "unwell", False),
        ("ready", "backing off", False),
        ("ready", "ended", True),  # of the set before a reload
        ("stopping", "ready", False),
    ],
)
def test_the_supervisor_must_say_so_too(phase, a1, full):
    instances = {**RECORD["instances"], "a1": {**RECORD["instances"]["a1"], "phase": a1}}
    assert look(record={**RECORD, "phase": phase, "instances": instances}).full is full


def test_a_server_without_a_supervisor_is_judged_by_its_workers():
    processes = [mark("", 211, 1, JAVA), mark("", 212, 211, LAUNCHER), mark("", 213, 212, ["python", SCRIPT])]
    seen = look(processes, ready={"": [213]}, record={}, planned=1, supervised=False)
    assert (seen.full, seen.strays) == (True, ())
    assert not look(processes, ready={"": []}, record={}, planned=1, supervised=False).full


def test_strays_are_those_that_do_not_descend_from_the_supervisor():
    orphan = change(113, ancestors=(1,))
    assert find_strays(orphan, 100) == ("a1 worker 113",)
    assert len(find_strays(list_processes(), 0)) == len(list_processes())  # it is gone


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', json.dumps({**RECORD, "door": None})])
def test_a_record_that_cannot_be_read_is_nobody(text):
    assert parse_supervisor(text) == NOBODY


def test_causes_are_told():
    assert parse_supervisor(json.dumps(RECORD)).causes == ("door: HAProxy ended (SIGKILL)",)


def test_processes_are_found_in_the_whole_and_in_each_instance_and_nowhere_else(tmp_path):
    run = RunDir.at(tmp_path / "run")
    places = {"": run.path, "a1": run.path / "instances" / "a1"}
    (run.path / "instances" / "a1").mkdir(parents=True)
    assert {name: place.path for name, place in find_places(run).items()} == places
    started = [
        shown(
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={MARK: str(path)})
        )
        for path in (*places.values(), tmp_path / "other")
    ]
    try:
        assert [(one.place, one.process.pid) for one in find_all(run)] == [
            ("", started[0].pid),
            ("a1", started[1].pid),
        ]
        (run.path / "supervisor.json").write_text(json.dumps({**RECORD, "pid": started[0].pid}))
        assert find_strays(find_all(run), read_supervisor(run).pid) == (f"a1 helper {started[1].pid}",)
    finally:
        for process in started:
            process.communicate(b"\n")


def test_it_is_watched_from_before_to_after(tmp_path, monkeypatch):
    monkeypatch.setattr("loadtest.experiments.chaos.watched.LOOK_S", 0.02)
    with watching(Watched(RunDir.at(tmp_path), supervised=True)) as looks:
        while len(looks) < 3:
            pass
    assert len(looks) >= 4
    assert not any(one.full for one in looks)
    assert [one.at for one in looks] == sorted(one.at for one in looks)
