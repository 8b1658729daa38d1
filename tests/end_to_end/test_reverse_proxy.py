"""HAProxy in front of two real TorchServes: what clients see when parts of it die, and of a reload."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from urllib3 import encode_multipart_formdata

from config.plan import read_plan
from config.proxy import SOCKETS
from server.processes import Process, find_marked, send_signal
from server.rundir import RunDir
from server.state import Phase, read_record
from server.verify.probes import call_grpc
from tests.end_to_end.kit import Kit, running
from tests.reliability.client import REFUSED, RESET, Load, Request

MODEL = "tiny_image"
BYTES = 300_000
"""A photograph's: more than HAProxy keeps of a request unless it is told to."""
RATE = 10.0
DEADLINE_S = 20.0
BACK_S = 300.0
"""Two small models on busy cores; 20 s seen."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyKit(Kit):
    """Parts of it can be killed."""

    def kill(self, role: str, instance: str = "") -> list[Process]:
        """All of that role."""
        found = self.find(role, instance)
        for process in found:
            send_signal(process, signal.SIGKILL)
        return found

    def read_record(self):
        return read_record(self.run_dir / "supervisor.json")

    def wait_until_ready(self) -> None:
        ends = time.monotonic() + BACK_S
        while (record := self.read_record()) is None or record.phase != Phase.READY:
            assert time.monotonic() < ends, record
            time.sleep(0.2)


@pytest.fixture(scope="module")
def proxy_kit(tmp_path_factory, tiny_store) -> Iterator[ProxyKit]:
    """A folder with a short name: sockets are in it."""
    folder = tmp_path_factory.mktemp("proxy")
    store = folder / "store"
    store.mkdir()
    for archive in tiny_store.glob("*.mar"):
        shutil.copy(archive, store)
    kit = ProxyKit(run_dir=folder / "run", store=store, port=find_ports())
    kit.plan("tiny_image tiny_text", INSTANCES=2)
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit
    assert find_marked(kit.run_dir) == []


def find_ports() -> int:
    """Those of both generations are free where these are: nothing else of the tests is up there."""
    return 17080 + os.getpid() % 8 * 100


@pytest.fixture(scope="module")
def photo(proxy_kit) -> bytes:
    """That of the smoke request, with bytes behind its end, which decoders leave alone."""
    photo = proxy_kit.run_dir / "samples" / "tiny_image-example.jpg"
    return photo.read_bytes().ljust(BYTES, b"\0")


def load(kit: ProxyKit, body: bytes) -> Load:
    """Clients that ask at a steady rate, each on a connection of its own."""
    headers = (("X-Deadline-Ms", str(int(DEADLINE_S * 1000))),)
    request = Request(path=f"/predictions/{MODEL}", body=body, token=kit.token, headers=headers)
    return Load(kit.port, itertools.repeat(request), rate=RATE)


def count(load: Load) -> Counter[int | str]:
    return Counter(one.failure or one.status for one in load.outcomes)


def test_it_answers_and_rejects_as_planned(proxy_kit, photo):
    assert proxy_kit.predict(MODEL, photo).status == 200
    planned = read_plan(proxy_kit.run_dir).count_workers(MODEL)
    ready = proxy_kit.request("ready", token="").json["models"][MODEL]
    assert ready == {"workers": planned, "planned": planned}
    rejected = proxy_kit.request(f"predictions/{MODEL}", photo, token="wrong")
    assert (rejected.status, rejected.json["code"]) == (401, 401)
    assert proxy_kit.request("predictions/another", b"x").status == 404
    late = proxy_kit.request(f"predictions/{MODEL}", photo, headers={"X-Deadline-Ms": "1"})
    assert late.status in (503, 504)
    page = f"http://127.0.0.1:{proxy_kit.port + 2}/metrics/proxy"
    with urllib.request.urlopen(page, timeout=60) as metrics:
        assert b"haproxy_server_status" in metrics.read()


@pytest.mark.parametrize("size", [BYTES, 5_000_000])
def test_a_form_of_one_field_is_answered_and_one_of_several_rejected(proxy_kit, photo, size):
    """What HAProxy holds in a buffer, and what it passes on; a boundary that is in the picture."""

    def ask(model: str, *fields: tuple[str, object]):
        return proxy_kit.predict(model, *encode_multipart_formdata(fields, boundary="x"))

    picture = photo + b"\r\n--xy" * ((size - BYTES) // 7)
    upload = ("data", ("photo.jpg", picture, "image/jpeg"))
    answers = [
        ask(MODEL, upload),
        proxy_kit.predict(MODEL, picture),
        proxy_kit.predict(f"{MODEL}/1.0", picture),
    ]
    assert [answer.status for answer in answers] == [200] * 3
    assert [[one["label"] for one in answer.json] for answer in answers] == [
        [one["label"] for one in answers[0].json]
    ] * 3
    twice = ask(MODEL, upload, upload)
    assert (twice.status, "'data', 'data'" in twice.json["error"]) == (400, True)
    assert ask("tiny_text", ("text", "good")).json["label"] in ("negative", "neutral", "positive")
    texts = ask("tiny_text", ("text", "good"), ("text", "bad"))
    assert (texts.status, "'text', 'text'" in texts.json["error"]) == (400, True)
    cut = encode_multipart_formdata([upload], boundary="x")[0][:-9]
    assert proxy_kit.predict(MODEL, cut, "multipart/form-data; boundary=x").status == 400


def test_verify_is_good_and_status_names_both_instances(proxy_kit):
    code, differing = proxy_kit.verify()
    assert (code, differing) == (0, {})
    status = proxy_kit.call("server", "status").stdout
    assert status.splitlines()[0].endswith("; 2 instances")
    assert "\na1: TorchServe ready since " in status
    assert "restarted" not in status


def test_no_secret_is_for_others_or_in_a_file_that_is_shown(proxy_kit):
    token = (proxy_kit.run_dir / "token").read_text().strip()
    assert len(token) >= 22  # 128 bits in base64
    for file in ("token", "bearers.lst", "authorization"):
        assert (proxy_kit.run_dir / file).stat().st_mode & 0o777 == 0o600
    for file in [proxy_kit.run_dir / "haproxy.cfg", *(proxy_kit.run_dir / "logs").iterdir()]:
        assert token not in file.read_text(errors="replace")


REACH = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("reached", path)
    except PermissionError:
        print("denied")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_gets_nothing_without_the_token(proxy_kit, photo, tmp_path_factory):
    """On no socket of REST, on no port of gRPC, and from HAProxy what any client gets."""
    for folder in (tmp_path_factory.getbasetemp(), *proxy_kit.run_dir.parents):
        if folder.stat().st_mode & 0o7 == 0:
            folder.chmod(0o711)  # else they would be out of reach anyway
    runs = [RunDir.at(proxy_kit.run_dir / "instances" / name) for name in ("a1", "a2")]
    sockets = [str(run.temporary / f"{name}.sock") for run in runs for name in SOCKETS]
    assert all(Path(path).is_socket() for path in sockets)
    assert {run.temporary.stat().st_mode & 0o777 for run in runs} == {0o700}
    tried = subprocess.run(
        ["/usr/bin/env", "python3", "-S", "-c", REACH, *sockets],
        user=65534, group=65534, extra_groups=[], cwd="/", env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert tried.stdout.split() == ["denied"] * len(sockets)
    for run in runs:
        properties = read_plan(proxy_kit.run_dir).instances[run.path.name].properties
        for kind, call in (("inference", "Predictions"), ("management", "ListModels")):
            method = f"org.pytorch.serve.grpc.{kind}.{kind.capitalize()}APIsService/{call}"
            assert call_grpc(int(properties[f"grpc_{kind}_port"]), method) == 12  # UNIMPLEMENTED
    assert proxy_kit.request(f"predictions/{MODEL}", photo, token="").status == 401


def test_a_proxy_that_is_killed_is_back_and_rejects_nobody_who_comes(proxy_kit, photo):
    first = proxy_kit.find("HAProxy")[0]
    proxy_kit.kill("HAProxy")
    began = time.monotonic()
    assert proxy_kit.predict(MODEL, photo).status == 200
    assert time.monotonic() - began < 30
    assert proxy_kit.find("HAProxy")[0].pid != first.pid
    proxy_kit.wait_until_ready()
    proxy_kit.wait_until_good()


def reload(kit: ProxyKit, **settings: object):
    """`make reload`."""
    own = kit.list_settings("tiny_image tiny_text", **{"INSTANCES": 2, **settings})
    return kit.call("server", "reload", "--built", *own)


def test_a_reload_to_another_plan_and_token_costs_no_request(proxy_kit, photo):
    before = (proxy_kit.run_dir / "token").read_text().strip()
    with load(proxy_kit, photo) as sent:
        done = reload(proxy_kit, ALLOCATOR="system")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(count(sent)) == {200}, count(sent)
    plan = json.loads((proxy_kit.run_dir / "plan.json").read_text())
    assert list(plan["instances"]) == ["b1", "b2"]
    assert plan["libraries"]["allocator"] == "system"
    assert find_marked(proxy_kit.run_dir / "instances" / "a1") == []
    assert proxy_kit.verify() == (0, {})
    (proxy_kit.run_dir / "token").write_text("another-token-of-this-test\n")
    assert reload(proxy_kit).returncode == 0
    assert proxy_kit.predict(MODEL, photo).status == 200
    assert proxy_kit.request(f"predictions/{MODEL}", photo, token=before).status == 401


def test_a_reload_that_fails_changes_nothing(proxy_kit, photo):
    archive = proxy_kit.store / f"{MODEL}.mar"
    good = archive.read_bytes()
    before = (proxy_kit.run_dir / "plan.json").read_bytes()
    archive.write_bytes(good[: len(good) // 2] + b"\xff" + good[len(good) // 2 + 1 :])
    try:
        done = reload(proxy_kit)
    finally:
        archive.write_bytes(good)
    assert done.returncode == 1
    assert "the server is what it was" in done.stdout
    assert (proxy_kit.run_dir / "plan.json").read_bytes() == before
    assert proxy_kit.predict(MODEL, photo).status == 200


def test_what_only_another_proxy_can_do_is_rejected(proxy_kit):
    done = reload(proxy_kit, HOST="127.0.0.2")
    assert done.returncode == 1
    assert "a reload cannot change HOST" in done.stderr


def test_a_changed_configuration_differs(proxy_kit):
    file = proxy_kit.run_dir / "haproxy.cfg"
    text = file.read_text()
    file.write_text(text + "# more\n")
    try:
        assert "haproxy.cfg" in proxy_kit.verify()[1]
    finally:
        file.write_text(text)


def test_a_stop_answers_what_was_accepted(proxy_kit, photo):
    with load(proxy_kit, photo) as sent:
        time.sleep(2)
        stopped = proxy_kit.stop()
        time.sleep(0.5)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    # Who is told 503 before all of a body was sent may see no more than that the connection is closed.
    assert set(count(sent)) <= {200, 503, REFUSED, RESET}, count(sent)
    assert find_marked(proxy_kit.run_dir) == []
