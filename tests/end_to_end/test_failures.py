"""A server that cannot become what was asked ends within seconds, says why, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import zipfile

import pytest

from server.processes import read_process
from tests.end_to_end.kit import ROOT, Kit

SOON_SECONDS = 150
"""A crash loop would take TorchServe's 300 s; a worker's start takes about 10 s on a quiet machine."""


def store_with(tiny_kit: Kit, tmp_path, name: str, change, *, sums: bool = True) -> Kit:
    """A store whose archive was built, as its sums say, with one member changed, and a kit that serves it."""
    store = tmp_path / "broken"
    store.mkdir()
    with zipfile.ZipFile(tiny_kit.store / "tiny_image.mar") as old:
        members = {member: old.read(member) for member in old.namelist()}
    before = hashlib.sha256(members[name]).hexdigest()
    members[name] = change(members[name])
    if sums:
        after = hashlib.sha256(members[name]).hexdigest()
        lines = [f"{digest}  {name}\n".encode() for digest in (before, after)]
        members["SHA256SUMS"] = members["SHA256SUMS"].replace(*lines)
    with zipfile.ZipFile(store / "tiny_image.mar", "w") as new:
        for member, content in members.items():
            new.writestr(member, content)
    return Kit(run_dir=tiny_kit.run_dir, store=store, port=tiny_kit.port)


@pytest.mark.parametrize(
    ("member", "change", "cause"),
    [
        (
            "kit_image_classifier.py",
            lambda code: code.replace(b"import torch", b"import no_such_module\nimport torch"),
            "no_such_module",
        ),
        ("model.safetensors", lambda content: content[:100_000], "build_eager"),
        ("definition.json", lambda content: content.replace(b"0.001", b"1e-12"), "self_check"),
    ],
    ids=["missing module", "broken weights", "self-check"],
)
def test_a_worker_that_cannot_load_ends_the_start_with_its_cause(tiny_kit, tmp_path, member, change, cause):
    kit = store_with(tiny_kit, tmp_path, member, change)
    kit.plan("tiny_image")
    began = time.monotonic()
    done = kit.start()
    assert done.returncode == 1
    assert cause in done.stderr
    assert time.monotonic() - began < SOON_SECONDS
    assert kit.processes() == []
    status = kit.call("server", "status")
    assert status.returncode == 1
    assert cause in status.stdout


def test_an_archive_with_a_changed_handler_does_not_start(tiny_kit, tmp_path):
    """Beside the same definition.json, which TorchServe and its worker would take."""
    more = store_with(tiny_kit, tmp_path, "handlers/kit_handler.py", lambda code: code + b"#", sums=False)
    more.plan("tiny_image")
    done = more.start()
    assert done.returncode == 1
    assert "tiny_image.mar: not as it was built: handlers/kit_handler.py has sha256" in done.stderr
    assert more.processes() == []


def test_a_port_in_use_is_named(tiny_kit):
    tiny_kit.plan("tiny_image")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", tiny_kit.port + 13))
        taken.listen()
        done = tiny_kit.start()
    assert done.returncode == 1
    assert str(tiny_kit.port + 13) in done.stderr
    assert tiny_kit.processes() == []


def test_a_killed_start_leaves_nothing_after_stop(tiny_kit):
    tiny_kit.plan("tiny_image")
    start = subprocess.Popen(
        tiny_kit.command("server", "start"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while len(tiny_kit.processes()) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    start.kill()
    start.wait()
    assert tiny_kit.processes(), "the killed start should have left TorchServe behind"
    assert tiny_kit.stop().returncode == 0
    assert tiny_kit.processes() == []


def test_hung_orphans_are_found_after_torchserve_was_killed(tiny_kit):
    """Workers that run see their socket closed and end by themselves."""
    tiny_kit.plan("tiny_image")
    assert tiny_kit.start().returncode == 0
    roles = {pid: found.role for pid in tiny_kit.processes() if (found := read_process(pid))}
    for pid, role in roles.items():
        os.kill(pid, signal.SIGSTOP if role in ("worker", "launcher") else signal.SIGKILL)
    time.sleep(1)
    assert tiny_kit.call("server", "status").returncode == 1
    assert tiny_kit.processes(), "the hung ones should be left"
    assert tiny_kit.stop().returncode == 0
    assert tiny_kit.processes() == []
    shutil.rmtree(tiny_kit.run_dir)


def test_a_killed_launcher_takes_even_a_hung_worker_along(tiny_server):
    """TorchServe ends a worker that does not answer by killing its launcher alone."""
    worker = tiny_server.workers("tiny_image")[0]
    os.kill(worker, signal.SIGSTOP)
    os.kill(read_process(worker).parent_pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while worker in tiny_server.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert worker not in tiny_server.processes()
    tiny_server.wait_until_good()


def test_another_plan_is_rejected_while_a_server_runs(tiny_server):
    kit = tiny_server
    assert kit.call("server", "check-serve", *kit.list_settings("tiny_image")).returncode == 0
    assert "in the background" in kit.call("server", "start", "FOREGROUND=1").stderr
    done = kit.call("server", "check-serve", *kit.list_settings("tiny_image", BACKEND="eager"))
    assert done.returncode == 1
    assert re.search("other BACKEND; do: .*make stop", done.stderr)
    assert kit.verify() == (0, {})
    kit.plan("tiny_image", BACKEND="eager")
    done = kit.start()
    assert done.returncode == 1
    assert "make stop" in done.stderr
    code, differing = kit.verify()
    assert code == 1
    assert {"plan", "backend"} <= set(differing)
    kit.plan("tiny_image")
    assert kit.verify() == (0, {})


def test_foreground_stops_on_a_signal_and_leaves_nothing(tiny_kit):
    tiny_kit.plan("tiny_image")
    server = subprocess.Popen(
        tiny_kit.command("server", "start", "FOREGROUND=1"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    watchdog = threading.Timer(120, server.kill)
    watchdog.start()
    for line in server.stdout:
        if line.startswith("server: "):
            break
    watchdog.cancel()
    server.send_signal(signal.SIGTERM)
    rest, _ = server.communicate(timeout=60)
    assert server.returncode == 0, rest
    assert tiny_kit.processes() == []
