"""The health file of a real server in the foreground: without workers it is ill soon, a quiet one is not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.kit import ROOT, START_SECONDS, Kit

ILL_SECONDS = WELL_SECONDS = 180
QUIET_SECONDS = 45
"""A quiet worker is asked after 30."""


def wait_for_health(kit: Kit, text: str, seconds: float) -> float:
    """How long it took until the file began so."""
    began = time.monotonic()
    file = kit.run_dir / "health"
    while not (file.exists() and file.read_text().startswith(text)):
        assert time.monotonic() - began < seconds, file.read_text() if file.exists() else "no health file"
        time.sleep(0.5)
    return time.monotonic() - began


@pytest.fixture
def watched(tiny_kit: Kit, tmp_path: Path) -> Iterator[Kit]:
    """A server that a process in the foreground stays with."""
    tiny_kit.plan("tiny_image")
    with (tmp_path / "out.txt").open("w") as out:
        command = tiny_kit.command("server", "start", "--foreground")
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
        try:
            wait_for_health(tiny_kit, "ready", START_SECONDS)
            yield tiny_kit
        finally:
            process.terminate()
            process.wait(60)


def test_a_server_whose_workers_are_stopped_is_ill_until_there_are_others_and_a_quiet_one_is_not(watched):
    workers = watched.workers("tiny_image")
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    wait_for_health(watched, "not ready: ", ILL_SECONDS)
    assert "tiny_image: no worker serves" in (watched.run_dir / "health").read_text()
    wait_for_health(watched, "ready", WELL_SECONDS)
    watched.wait_until_good()
    assert not {*workers} & {*watched.workers("tiny_image")}
    began = time.monotonic()
    while time.monotonic() - began < QUIET_SECONDS:
        assert (watched.run_dir / "health").read_text() == "ready\n"
        time.sleep(2)
