"""Evidence is read from /proc and the describe API as it is."""

from __future__ import annotations

import itertools
import threading
import zipfile

import pytest

from server.processes import JAVA_MAIN
from server.state import State
from server.verify.collect import (
    Descriptions,
    collect,
    collect_descriptions,
    describe_workers,
    find_changed_files,
    read_worker,
)

SCRIPT = "/kit/ts/model_service_worker.py"
LAUNCHER = ("python", "-m", "torch.backends.xeon.run_cpu", "--rank", "1", SCRIPT)


@pytest.fixture
def worker(proc):
    """A worker under its launcher."""
    proc.add(6, command=LAUNCHER)
    folder = proc.add(7, command=("python", "-u", SCRIPT), parent=6, environment={"OMP_NUM_THREADS": "2"})
    proc.add_thread(7, 7, "2-3")
    proc.add_thread(7, 10, "2")
    (folder / "maps").write_text(
        "7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/libjemalloc.so.2\n"
        "7f01-7f02 r--p 00000000 08:01 1   /usr/lib/libjemalloc.so.2\n"
        "7f02-7f03 r-xp 00000000 08:01 2   /kit/a folder/libiomp5.so (deleted)\n"
        "7f03-7f04 rw-p 00000000 00:00 0 \n7f04-7f05 rw-p 00000000 00:00 0   [heap]\n"
        "7f05-7f06 r--p 00000000 08:01 3   /kit/model.safetensors\n"
    )
    (folder / "numa_maps").write_text("7f00 bind:0 file=/usr/lib/x N0=1\n7f01 bind:0 anon=2\n7f02 local\n")
    (folder / "cgroup").write_text("0::/nowhere\n")
    return folder


def test_one_worker_is_read_whole(worker, proc, archive):
    state = State(
        phase="ready",
        plan_sha256="",
        started_at="",
        throttled_at_start={"a": {"nr_throttled": 1}},
        throttled_when_ready={"a": {"nr_throttled": 5}},
    )
    seen = read_worker("echo", 7, archive, Descriptions(answers={7: {"pid": 7}}), state, proc.path)
    assert seen.launcher == LAUNCHER
    assert seen.thread_cpus == {"7": (2, 3), "10": (2,)}
    assert seen.memory_policies == {"bind:0": 2, "local": 1}
    assert seen.libraries == ("/kit/a folder/libiomp5.so", "/usr/lib/libjemalloc.so.2")
    assert seen.environment == {"OMP_NUM_THREADS": "2"}
    assert (seen.archive_id, seen.throttled_loading) == (archive.archive_id, 4)


def test_a_worker_that_is_gone_is_none_everywhere(proc, archive):
    seen = read_worker("echo", 7, archive, Descriptions(problem="timed out"), None, proc.path)
    assert (seen.thread_cpus, seen.memory_policies, seen.libraries, seen.environment, seen.launcher) == (
        None,
    ) * 5
    assert seen.describe_problem == "timed out"


def test_describe_is_asked_until_every_worker_has_answered(torchserve, client):
    answers = itertools.chain([8, 8, 8], itertools.repeat(7))
    torchserve.routes = {
        "GET /models/bert?customized=true": lambda: (200, [{"customizedMetadata": {"pid": next(answers)}}])
    }
    found, _ = collect_descriptions("bert", client, {7, 8})
    assert set(found) == {7, 8}


def set_queue(torchserve, waiting, describe=(503, {"message": "no worker to serve describe request"})):
    """A model whose workers have no turn to describe themselves."""
    torchserve.routes = {
        "GET /models/bert": (200, [{"jobQueueStatus": {"pendingRequests": waiting}}]),
        "GET /models/bert?customized=true": describe,
    }


def set_activity(proc, pid, *, cpu_ticks=0, state="S"):
    stat = proc.path / str(pid) / "stat"
    head, _, tail = stat.read_text().rpartition(")")
    fields = tail.split()
    fields[0], fields[11] = state, str(cpu_ticks)
    stat.write_text(f"{head}) {' '.join(fields)}\n")


@pytest.mark.parametrize(("waiting", "excused"), [(90, {7}), (0, set())])
def test_a_worker_that_computes_while_requests_wait_is_excused(torchserve, client, proc, waiting, excused):
    for pid in (7, 8):
        proc.add(pid)

    def compute():
        set_activity(proc, 7, cpu_ticks=10_000)
        return 503, {}

    set_queue(torchserve, waiting, compute)
    found = describe_workers("bert", client, {7, 8}, 3.0, proc.path)
    assert set(found.excuses) == excused
    assert found.problem


def test_a_stopped_worker_is_not_asked_and_neither_are_those_beside_it(torchserve, client, proc):
    for pid in (7, 8):
        proc.add(pid, state="T" if pid == 7 else "S")
    set_queue(torchserve, 0)
    found = describe_workers("bert", client, {7, 8}, 1.0, proc.path)
    assert torchserve.requests == []
    assert set(found.excuses) == {8}
    seen = read_worker("bert", 7, None, found, None, proc.path)
    assert (seen.stopped, seen.excuse, seen.archive_id) == (True, "", "")


def test_one_worker_that_hangs_does_not_keep_the_others_from_being_asked(torchserve, client):
    """Of three workers one takes a question and keeps it; a turn goes to each of the others."""
    lock, turns, over = threading.Lock(), itertools.count(), threading.Event()

    def answer():
        with lock:
            turn = next(turns)
        if turn == 0:
            over.wait(60)
        return 200, [{"customizedMetadata": {"pid": 8 + turn // 4 % 2}}]

    torchserve.routes = {"GET /models/bert?customized=true": answer}
    found, _ = collect_descriptions("bert", client, {7, 8, 9}, seconds=3.0)
    over.set()
    assert {8, 9} <= set(found)


def test_what_torchserve_says_of_a_model_is_kept(plan, planned, torchserve, client, dummy, monkeypatch):
    dummy(planned.path, JAVA_MAIN)
    looks = itertools.count()

    def describe():
        free = 127 if next(looks) == 0 else 126  # the first look is of two moments
        queue = {"pendingRequests": 2, "remainingCapacity": free}
        return 200, [{"batchSize": 3, "workers": [], "jobQueueStatus": queue}]

    torchserve.routes = {"GET /models/bert": describe}
    seen = collect(plan, planned, {}, client)
    assert seen.models["bert"].settings["batchSize"] == 3
    assert seen.models["bert"].queue_sizes[:2] == (129, 128)
    assert "answered 404" in seen.models["resnet50"].problem
    assert seen.stray_workers is None  # a worker that TorchServe says nothing of is not lost
    assert seen.frontend.answers["register a model"] == "404"


@pytest.fixture
def unpacked(archive, tmp_path):
    """TorchServe's folder of unpacked models, with byte code as the workers leave it."""
    folder = tmp_path / "models" / "0a1b"
    with zipfile.ZipFile(archive.path) as packed:
        packed.extractall(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "handler.cpython-311.pyc").write_bytes(b"x")
    return folder


def test_the_files_that_workers_load_are_those_that_were_built(archive, unpacked):
    assert find_changed_files(archive, unpacked.parent) == ()
    (unpacked / "canary.txt").write_text("other")
    (unpacked / "extra.py").touch()
    changed = find_changed_files(archive, unpacked.parent)
    assert [change.split(" ", 1)[0] for change in changed] == ["canary.txt", "extra.py"]


def test_a_model_that_is_not_unpacked_is_told_from_one_that_is_as_built(archive, unpacked):
    (unpacked / "definition.json").write_text('{"name": "another"}')
    assert find_changed_files(archive, unpacked.parent) is None
