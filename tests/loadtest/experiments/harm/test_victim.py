"""The victim tells workers from strays and right canaries from wrong ones, and starts a lost server again."""

from __future__ import annotations

import importlib
import json
import os
from types import SimpleNamespace

import pytest

from loadtest.experiments.harm import victim as module
from loadtest.experiments.harm.client import Outcome
from loadtest.experiments.harm.victim import Victim, choose_workers
from loadtest.systems.fleet import Site
from server.archives import Canary
from server.errors import ApiError
from server.processes import JAVA_MAIN, LAUNCHER_MODULE, WORKER_SCRIPT, Process
from server.rundir import RunDir

rude = importlib.import_module("tests.loadtest.experiments.harm.rude_server")
CANARY = Canary(
    file="a.txt",
    body=b"good",
    content_type="text/plain",
    expected={"positive": 0.9},
    tolerance={"fp32": {"relative": 0.01, "absolute": 0.0}},
)


def make_process(pid, parent, *words):
    return Process(pid=pid, start_ticks=1, parent_pid=parent, command=words)


JAVA = make_process(10, 1, JAVA_MAIN)
LAUNCHER = make_process(20, 10, LAUNCHER_MODULE, f"/x/{WORKER_SCRIPT}")


def make_worker(pid, parent):
    return make_process(pid, parent, "python", f"/x/{WORKER_SCRIPT}")


def make_victim(tmp_path, *, port=1, workers=2):
    site = Site(store=tmp_path, folder=tmp_path, first_port=1, say=print)
    made = Victim(site, "fp32")
    model = SimpleNamespace(workers=SimpleNamespace(value=workers), precision=SimpleNamespace(value="fp32"))
    plan = SimpleNamespace(models={"bert": model})
    made.system = SimpleNamespace(plan=plan, run=RunDir.at(tmp_path))
    made.archives = {"bert": SimpleNamespace(canary=CANARY)}
    made.token, made.port = "secret", port
    return made


def test_a_worker_whose_launcher_was_killed_is_none_any_more():
    pinned, stray, unpinned = make_worker(30, 20), make_worker(31, 1), make_worker(32, 10)
    assert choose_workers([JAVA, LAUNCHER, pinned, stray, unpinned]) == [pinned, unpinned]


@pytest.mark.parametrize(
    ("probability", "status", "right"), [(0.9, 200, True), (0.8, 200, False), (0.9, 503, False)]
)
def test_a_canary_is_right_when_its_answer_is(tmp_path, probability, status, right):
    body = json.dumps({"label": "positive", "probabilities": {"positive": probability}}).encode()
    assert make_victim(tmp_path).is_right("bert", Outcome(status=status, body=body)) is right


def test_what_is_no_json_is_no_right_answer(tmp_path):
    assert not make_victim(tmp_path).is_right("bert", Outcome(status=200, body=b"\xff"))


def test_canaries_are_asked_until_they_are_right(monkeypatch, tmp_path):
    answers = [b"busy", b"busy", json.dumps({"probabilities": {"positive": 0.9}}).encode()]
    asked = []

    def answer(link):
        asked.append(rude.read_request(link))
        body = answers[min(len(asked), len(answers)) - 1]
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    monkeypatch.setattr(module, "MODELS", ("bert",))
    with rude.serving(answer) as port:
        took = make_victim(tmp_path, port=port).time_canaries()
    assert 0.2 <= took < 3
    assert len(asked) == 3
    assert b"Authorization: Bearer secret" in asked[0]


def test_canaries_that_never_are_right_are_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MODELS", ("bert",))
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    with rude.serving(rude.answer_once) as port:
        assert make_victim(tmp_path, port=port).time_canaries() is None


@pytest.mark.parametrize(
    ("found", "canaries", "restarted"), [(2, 0.1, False), (1, 0.1, True), (2, None, True)]
)
def test_a_server_that_lost_something_is_started_again(monkeypatch, tmp_path, found, canaries, restarted):
    victim = make_victim(tmp_path)
    started = []
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(victim, "_start", lambda: started.append(1))
    workers = [{"status": "READY"}] * found + [{"status": "WORKER_STARTED"}]
    victim.system.client = SimpleNamespace(
        describe=lambda model: {"workers": workers if model == "bert" else []}
    )
    monkeypatch.setattr(victim, "time_canaries", lambda: canaries)
    assert victim.ensure() is restarted
    assert len(started) == restarted


def test_a_look_reads_processes_memory_and_logs(monkeypatch, tmp_path):
    here, gone = make_worker(os.getpid(), 10), make_worker(2**22 + 1, 10)
    monkeypatch.setattr(module, "find_marked", lambda path: [JAVA, here, gone])
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "ts_log.log").write_text("java.lang.OutOfMemoryError: Direct buffer memory\n" * 3)
    (tmp_path / "logs" / "old").mkdir()
    look = make_victim(tmp_path).look()
    assert look.java == 10
    assert list(look.resident_mib) == list(look.peak_mib) == list(look.cpu_s) == [os.getpid()]
    assert look.peak_mib[os.getpid()] >= look.resident_mib[os.getpid()] > 5
    assert look.out_of_memory == 3
    assert look.log_kib == pytest.approx(49 * 3 / 1024)


def test_a_server_that_does_not_answer_has_no_worker_ready(tmp_path):
    def describe(_):
        raise ApiError("no answer")

    victim = make_victim(tmp_path)
    victim.system.client = SimpleNamespace(describe=describe)
    assert victim._count_ready() == 0
