"""Fixtures of the server's tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.plan import Plan, write_plan
from handlers.definition import Packed
from server.api import Client
from server.archives import read_archive
from server.rundir import RunDir
from tests.plans import make_plan
from tests.server import fakes


@pytest.fixture
def plan(run: RunDir) -> Plan:
    """bert and resnet50 in two instances, one worker each."""
    return make_plan(run_dir=run.path)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An empty run directory."""
    folder = tmp_path / "run"
    folder.mkdir()
    return RunDir.at(folder)


@pytest.fixture
def planned(run: RunDir, plan: Plan) -> RunDir:
    """A run directory with that plan."""
    write_plan(plan, run.plan)
    return run


@pytest.fixture
def lines() -> list[str]:
    """What is reported."""
    return []


@pytest.fixture
def archive(tmp_path: Path) -> Packed:
    return read_archive(fakes.make_archive(tmp_path / "echo.mar"))


@pytest.fixture
def proc(tmp_path: Path) -> fakes.FakeProc:
    (tmp_path / "proc").mkdir()
    return fakes.FakeProc(tmp_path / "proc")


@pytest.fixture
def torchserve() -> Iterator[fakes.FakeTorchServe]:
    with fakes.serve_fake() as fake:
        yield fake


@pytest.fixture
def client(torchserve: fakes.FakeTorchServe) -> Client:
    return Client(inference_url=torchserve.url, management_url=torchserve.url)


@pytest.fixture
def dummy() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts marked processes and ends those that are left."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **keywords: object) -> subprocess.Popen[bytes]:
        process = fakes.start_dummy(*arguments, **keywords)  # type: ignore[arg-type]
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
