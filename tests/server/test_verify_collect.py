"""What is live is read as it is: from /proc, by describe, from unpacked archives, by probes."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import shutil
import socket
import threading
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest

from server.processes import JAVA_MAIN, Activity, Process
from server.state import State, write_state
from server.throttling import Loss
from server.verify import collect, probes
from server.verify.collect import collect_descriptions, collect_instance, describe_workers, find_changes
from server.verify.probes import PROXY_PROBES, Unknown, call_grpc, probe_instance, probe_proxy, read_listening
from tests.plans import make_model
from tests.server.fakes import answer_once

SCRIPT = "/kit/ts/model_service_worker.py"
LAUNCHER = ("-m", "torch.backends.xeon.run_cpu", "--rank", "1", SCRIPT)
STATE = State(
    phase="ready", plan_sha256="p", started_at="", properties_sha256="at-start",
    configuration={"a": "[b, c]"},
    throttled_at_start={"a": {"nr_throttled": 1}}, throttled_when_ready={"a": {"nr_throttled": 5}},
)  # fmt: skip


def test_a_worker_is_read_whole(dummy, tmp_path, monkeypatch):
    """A real one, pinned, whose launcher is its parent."""
    code = (
        "import os, subprocess, sys, time; os.sched_setaffinity(0, {0}); "
        "inner = 'import time; print(7, flush=True); time.sleep(60)'; "
        "child = subprocess.Popen([sys.executable, '-c', inner], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
    )
    pid = int(dummy(tmp_path, *LAUNCHER, code=code).stdout.readline())
    monkeypatch.setattr(collect, "read_throttled", lambda _: {"a": {"nr_throttled": 7}})
    try:
        seen = collect.read_worker(pid, {pid: {"pid": pid}}, STATE, "id")
    finally:
        os.kill(pid, 9)
    assert seen.launcher[-5:] == LAUNCHER
    assert (seen.thread_cpus, seen.cpus) == ({str(pid): (0,)}, {0})
    assert any(file.startswith("/") and ".so" in file for file in seen.libraries)
    assert seen.environment["CPU_KIT_RUN"] == str(tmp_path)
    assert (seen.throttling, seen.throttled_loading) == (Loss(times=2), 4)
    assert (seen.running, seen.stopped, seen.describe, seen.archive_id) == (True, False, {"pid": pid}, "id")


def test_of_a_worker_that_is_gone_nothing_is_known():
    seen = collect.read_worker(2**22 + 1, {}, None, "")
    unknown = ("thread_cpus", "memory_policies", "libraries", "environment", "launcher", "throttling")
    assert {getattr(seen, name) for name in unknown} == {None}
    assert isinstance(seen.describe, str)
    assert not seen.running


def test_mappings_and_memory_policies_are_parsed(proc):
    folder = proc.add(7)
    (folder / "maps").write_text(
        "7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/libjemalloc.so.2\n"
        "7f01-7f02 r--p 00000000 08:01 1   /usr/lib/libjemalloc.so.2\n"
        "7f02-7f03 r-xp 00000000 08:01 2   /kit/a folder/libiomp5.so (deleted)\n"
        "7f03-7f04 rw-p 00000000 00:00 0 \n7f04-7f05 rw-p 00000000 00:00 0   [heap]\n"
        "7f05-7f06 r--p 00000000 08:01 3   /kit/model.safetensors\n"
    )
    (folder / "numa_maps").write_text("7f00 bind:0 file=/usr/lib/x N0=1\n7f01 bind:0 anon=2\n7f02 local\n")
    assert collect.read_libraries(7, proc.path) == ("/kit/a folder/libiomp5.so", "/usr/lib/libjemalloc.so.2")
    assert collect.read_memory_policies(7, proc.path) == {"bind:0": 2, "local": 1}


def test_flags_are_those_before_the_class_path_and_those_of_the_environment():
    java = ("java", "-Dmodel_server_home=/x", "-Xmx9m", "-Xms9m", "-cp", "x", "-Xnot-a-flag")
    assert collect.read_flags(java, {"PATH": "/bin"}) == ["-Xms9m", "-Xmx9m"]
    assert collect.read_flags(java[:3], {"_JAVA_OPTIONS": "-Xmx1m"}) == ["-Xmx9m", "_JAVA_OPTIONS=-Xmx1m"]
    assert collect.read_flags(java, None) is None


def test_a_file_is_compared_with_that_of_the_start(tmp_path):
    file = tmp_path / "file"
    assert collect.compare_digest(file, None) == collect.compare_digest(file, "at-start") == "gone"
    file.write_bytes(b"x")
    assert collect.compare_digest(file, None) == collect.compare_digest(file, "at-start") != ""
    assert collect.compare_digest(file, hashlib.sha256(b"x").hexdigest()) == ""


# ---- describe


def set_answers(torchserve, customized, waiting=0):
    torchserve.routes = {
        "GET /models/bert": (200, [{"jobQueueStatus": {"pendingRequests": waiting}}]),
        "GET /models/bert?customized=true": customized,
    }


def test_describe_is_asked_until_every_worker_has_answered(torchserve, client):
    answers = itertools.chain([8, 8, 8], itertools.repeat(7))
    set_answers(torchserve, lambda: (200, [{"customizedMetadata": {"pid": next(answers)}}]))
    assert set(describe_workers("bert", client, {7, 8})) == {7, 8}


def test_one_worker_that_hangs_does_not_keep_the_others_from_being_asked(torchserve, client):
    """Of three workers one takes a question and keeps it; a turn goes to each of the others."""
    lock, turns, over = threading.Lock(), itertools.count(), threading.Event()

    def answer():
        with lock:
            turn = next(turns)
        if turn == 0:
            over.wait(60)
        return 200, [{"customizedMetadata": {"pid": 8 + turn // 4 % 2}}]

    set_answers(torchserve, answer)
    found, _ = collect_descriptions("bert", client, {7, 8, 9}, seconds=3.0)
    over.set()
    assert {8, 9} <= set(found)


def set_activity(monkeypatch, *stopped):
    """Worker 7 computes, 8 does nothing."""
    ticks = itertools.count()
    monkeypatch.setattr(
        collect, "read_activity",
        lambda pid: Activity(stopped=pid in stopped, cpu_seconds=next(ticks) * (pid == 7), start_ticks=0),
    )  # fmt: skip


@pytest.mark.parametrize(("waiting", "excused"), [(90, {7}), (0, set())])
def test_a_worker_that_computes_while_requests_wait_is_excused(
    torchserve, client, monkeypatch, waiting, excused
):
    set_activity(monkeypatch)
    set_answers(torchserve, (503, {"message": "no worker to serve describe request"}), waiting)
    found = describe_workers("bert", client, {7, 8}, 0.5)
    assert {pid for pid, why in found.items() if isinstance(why, Unknown)} == excused
    assert all(isinstance(why, str) and why for why in found.values())


def test_a_stopped_worker_is_not_asked_and_neither_are_those_beside_it(torchserve, client, monkeypatch):
    set_activity(monkeypatch, 7)
    found = describe_workers("bert", client, {7, 8}, 1.0)
    assert torchserve.requests == []
    assert {pid: isinstance(why, Unknown) for pid, why in found.items()} == {7: False, 8: True}


# ---- unpacked archives


def pack(file, version="1.0", name="echo"):
    """An archive with its sums; the sums."""
    manifest = json.dumps({"model": {"modelName": name, "modelVersion": version}})
    members = {"example.txt": b"hello", "MAR-INF/MANIFEST.json": manifest.encode()}
    lines = [f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in members.items()]
    members["SHA256SUMS"] = "".join(lines).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return members["SHA256SUMS"]


def unpack(file, folder):
    """As TorchServe does, with byte code as the workers leave it."""
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "handler.cpython-311.pyc").write_bytes(b"x")


@pytest.mark.parametrize("kit", [True, False])
def test_the_files_that_workers_load_are_those_of_the_archive(tmp_path, kit):
    file, unpacked = tmp_path / "echo.mar", tmp_path / "models"
    sums, folder = pack(file), unpacked / "0a1b"
    unpack(file, folder)
    see = functools.partial(find_changes, file, sums if kit else None, unpacked)
    assert see() == ""
    (folder / "example.txt").write_text("other")
    (folder / "extra.py").touch()  # a handler of others may write beside its own files
    assert see().startswith("example.txt has ")
    assert ("extra.py was not built in" in see()) is kit
    (folder / "example.txt").unlink()
    assert see().startswith("example.txt is missing")


@pytest.mark.parametrize("other", [{"version": "2.0"}, {"name": "another"}])
def test_a_model_that_is_not_unpacked_is_told_from_one_that_is_as_built(tmp_path, other):
    pack(tmp_path / "other.mar", **other)
    unpack(tmp_path / "other.mar", tmp_path / "models" / "0a1b")
    sums = pack(tmp_path / "echo.mar")
    assert find_changes(tmp_path / "echo.mar", sums, tmp_path / "models") == "not unpacked"
    assert find_changes(None, None, tmp_path / "models").startswith("no archive is left")
    assert find_changes(tmp_path / "gone.mar", None, tmp_path / "models").startswith("cannot be read")


# ---- an instance, HAProxy


@pytest.fixture
def instance(plan, run, torchserve, client, dummy, monkeypatch):
    """a1 of the plan, run by a stand-in for java; its management API is the fake's."""
    own = run.instance("a1")
    own.path.mkdir(parents=True)
    own.temporary.mkdir(mode=0o750)  # in /tmp, since this path is too long for a socket
    own.properties.write_text("a=b\n")
    write_state(own.state, STATE)
    monkeypatch.setattr(collect, "make_instance_client", lambda *_: client)
    dummy(own.path, JAVA_MAIN)
    torchserve.routes = {"POST /models": (405, {})}
    yield own
    shutil.rmtree(own.temporary)


def test_an_instance_is_read_whole(plan, run, instance, torchserve):
    readings = itertools.count()

    def describe():
        free = 19 if next(readings) == 0 else 18  # the first reading is of two moments
        queue = {"pendingRequests": 2, "remainingCapacity": free}
        workers = [{"pid": os.getpid(), "status": "UNLOADING"}, {"pid": -1, "status": "READY"}]
        return 200, [{"batchSize": 3, "workers": workers, "jobQueueStatus": queue}]

    torchserve.routes["GET /models/bert"] = describe
    with socket.socket(socket.AF_UNIX) as inference:
        inference.bind(str(instance.temporary / "inference.sock"))
        seen = collect_instance(plan, "a1", run, {})
    bert, resnet = seen.models
    assert (bert.described["batchSize"], bert.queue_size, bert.listed) == (3, 20, 2)
    assert [worker.pid for worker in bert.workers] == [os.getpid()]
    assert bert.files != ""
    assert not [what for what, _, _ in torchserve.requests if "customized" in what]  # READY without a process
    assert "404" in resnet.problem
    assert seen.orphans is None  # a worker that TorchServe says nothing of is not lost
    assert (seen.running, seen.sockets) == (True, "inference; folder of mode 750")
    assert (seen.properties_at_start, seen.properties) == ("at-start", "changed since the start")
    assert (seen.configuration, JAVA_MAIN in seen.flags) == ({"a": "b,c"}, True)
    assert seen.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert seen.answers["model API"] == "off"


def test_a_foreign_model_is_described_by_version_and_its_workers_are_not_asked(
    plan, run, instance, torchserve
):
    archives = {"1.0": "/no.mar", "2.0": "/no.mar"}
    model = make_model("old", kit=False, archives=archives, backend="", precision="")
    changed = replace(plan, instances={"a1": replace(plan.instances["a1"], models={"old": model})})
    for version, pid in (("1.0", os.getpid()), ("2.0", os.getppid())):
        described = [{"workers": [{"pid": pid, "status": "READY"}]}]
        torchserve.routes[f"GET /models/old/{version}"] = (200, described)
    seen = collect_instance(changed, "a1", run, {})
    assert [worker.pid for one in seen.models for worker in one.workers] == [os.getpid(), os.getppid()]
    assert not [what for what, _, _ in torchserve.requests if "customized" in what]
    assert seen.orphans == ()


def test_workers_without_torchserve_are_orphans(plan, run, dummy):
    lost = dummy(run.instance("a1").path, SCRIPT)
    seen = collect_instance(plan, "a1", run, {})
    assert (seen.running, seen.orphans) == (False, (lost.pid,))


def test_without_a_server_the_proxy_is_seen_to_be_down(plan, run):
    seen = collect.collect_proxy(plan, run)
    assert (seen.phase, seen.listening, seen.limits, seen.token) == ("no supervisor runs", {}, {}, "none")
    assert isinstance(seen.plan, Unknown)
    assert seen.configuration == "gone"
    assert set(seen.answers) == set(PROXY_PROBES)


@pytest.mark.parametrize(("uid", "told"), [(0, "mode 700"), (1, "mode 700 of another user")])
def test_who_may_reach_the_sockets_is_seen(tmp_path, uid, told):
    tmp_path.chmod(0o700)
    owner = SimpleNamespace(st_uid=tmp_path.stat().st_uid + uid)
    run = SimpleNamespace(temporary=tmp_path, path=SimpleNamespace(stat=lambda: owner))
    assert collect.read_sockets(run) == f"; folder of {told}"
    assert collect.read_sockets(SimpleNamespace(temporary=tmp_path / "none")) == "none"


# ---- probes


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "*")])
def test_all_that_a_process_listens_on_is_found_and_nothing_else(host, shown):
    java = Process(pid=os.getpid(), start_ticks=1, parent_pid=1, command=("java", JAVA_MAIN))
    with socket.create_server((host, 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        port = one.getsockname()[1]
        found = read_listening([java])
        assert found[f"{shown}:{port}"] == "TorchServe"
        with socket.create_connection(("127.0.0.1", two.getsockname()[1])):  # a connection is no listener
            assert read_listening([java, replace(java, pid=2**22 + 1)]) == found
    assert f"{shown}:{port}" not in read_listening([java])


def test_a_socket_that_the_supervisor_handed_to_haproxy_is_haproxys_whatever_their_ids():
    known = {"pid": os.getpid(), "start_ticks": 1, "parent_pid": 1}
    supervisor = Process(command=("python", "-m", "server", "supervise"), **known)
    haproxy = Process(command=("haproxy", "-db"), **known)
    with socket.create_server(("127.0.0.1", 0)) as one:
        address = f"127.0.0.1:{one.getsockname()[1]}"
        for order in ([supervisor, haproxy], [haproxy, supervisor]):
            assert read_listening(order)[address] == "HAProxy"
        assert read_listening([supervisor])[address] == "supervisor"


STATUS = b"\0\0\x10\x01\x05\0\0\0\x01" + b"\0\x0bgrpc-status\x0212"
"""A HEADERS frame of netty's, with its trailers unindexed and without Huffman's code."""


def test_the_status_of_a_grpc_call_is_read():
    with socket.create_server(("127.0.0.1", 0)) as server, answer_once(server, STATUS) as sent:
        assert call_grpc(server.getsockname()[1], "a.Service/Ping") == 12
    assert sent[0].startswith(b"PRI * HTTP/2.0")
    assert b"/a.Service/Ping" in sent[0]


PORTS = {"grpc_inference_port": "1", "grpc_management_port": "1"}


def test_probes_touch_no_worker(torchserve, client):
    torchserve.routes = {"POST /models": (405, {})}
    size = torchserve.largest_request
    answers = probe_instance(client, "bert", {"max_request_size": str(size), **PORTS})
    assert answers["model API"] == "off"
    assert answers["request size"] == f"{size} bytes: 100; one more: 413"
    assert answers["gRPC"].count("refused") == 2
    assert {what for what, _, _ in torchserve.requests} == {"POST /models"}


@pytest.mark.parametrize(
    ("status", "grpc", "unknown", "told"),
    [
        (400, 12, False, ("on", "rejected")),
        (403, 12, False, ("off", "rejected")),
        (500, 0, False, ("500", "gRPC inference 0, gRPC management 0")),
        (429, 12, True, ("429", "rejected")),
        (503, 12, True, ("503", "rejected")),
    ],
)
def test_a_status_is_told_by_what_it_means(torchserve, client, monkeypatch, status, grpc, unknown, told):
    torchserve.routes = {"POST /models": (status, {})}
    monkeypatch.setattr(probes, "call_grpc", lambda *_: grpc)
    monkeypatch.setattr(probes, "announce", lambda *_: status)
    answers = probe_instance(client, "bert", {"max_request_size": "9", **PORTS})
    assert (answers["model API"], answers["gRPC"]) == told
    assert {isinstance(answers[row], Unknown) for row in ("model API", "request size")} == {unknown}


def test_the_proxy_is_called_with_and_without_its_token(torchserve, client, tmp_path):
    (tmp_path / "token").write_text("a-token-of-this-server")
    torchserve.routes = {"POST /predictions/bert": (401, {}), "GET /ready": (200, {}), "GET /live": (503, {})}
    answers = probe_proxy(replace(client, token_file=tmp_path / "token"), "bert", torchserve.largest_request)
    assert list(answers) == list(PROXY_PROBES)
    assert (answers["no token"], answers["/ready"], answers["/live"]) == ("401", "200", "503")
    assert (answers["largest request"], answers["one byte more"]) == ("100", "413")
    tokens = {what: token for what, token, _ in torchserve.requests}
    assert "this-server" in tokens["GET /models"]
    assert tokens["GET /ready"] == ""
