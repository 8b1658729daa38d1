"""The supervisor's record of a server in the foreground: without workers it is ill, a quiet one is not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.state import Part, Phase, read_record
from tests.end_to_end.kit import ROOT, START_SECONDS, Kit

ILL_SECONDS = WELL_SECONDS = 180
QUIET_SECONDS = 45
"""A quiet worker is sent a smoke request after 30."""


def read_part(kit: Kit) -> Part:
    """Of its one instance."""
    record = read_record(kit.run_dir / "supervisor.json")
    return record.instances.get("a1", Part()) if record else Part()


def wait_until(kit: Kit, seconds: float, *, ready: bool) -> Part:
    """Until the instance is ready, or is not."""
    began = time.monotonic()
    while ((part := read_part(kit)).phase == Phase.READY) is not ready:
        assert time.monotonic() - began < seconds, part
        time.sleep(0.5)
    return part


@pytest.fixture
def watched(tiny_kit: Kit, tmp_path: Path) -> Iterator[Kit]:
    """A server that a process in the foreground stays with."""
    tiny_kit.plan("tiny_image")
    with (tmp_path / "out.txt").open("w") as out:
        command = tiny_kit.command("server", "start", "FOREGROUND=1")
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
        try:
            wait_until(tiny_kit, START_SECONDS, ready=True)
            yield tiny_kit
        finally:
            process.terminate()
            process.wait(60)


def test_a_server_whose_workers_are_stopped_is_ill_until_there_are_others_and_a_quiet_one_is_not(watched):
    workers = watched.workers("tiny_image")
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    ill = wait_until(watched, ILL_SECONDS, ready=False)
    assert ill.models.get("tiny_image", 0) == 0
    wait_until(watched, WELL_SECONDS, ready=True)
    watched.wait_until_good()
    assert not {*workers} & {*watched.workers("tiny_image")}
    began = time.monotonic()
    while time.monotonic() - began < QUIET_SECONDS:
        assert read_part(watched).phase == Phase.READY
        time.sleep(2)
