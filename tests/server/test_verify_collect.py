"""Evidence is read from /proc and the describe API as it is."""

from __future__ import annotations

import itertools
import zipfile

import pytest

from server.api import Client
from server.archives import read_archive
from server.state import State
from server.verify.collect import (
    collect_descriptions,
    find_changed_files,
    parse_cpu_list,
    read_launcher,
    read_worker,
)
from tests.server.fakes import make_archive

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


@pytest.fixture
def archive(tmp_path):
    return read_archive(make_archive(tmp_path / "echo.mar"))


def test_one_worker_is_read_whole(worker, proc, archive):
    state = State(
        phase="ready",
        plan_sha256="",
        started_at="",
        throttled_at_start={"a": {"nr_throttled": 1}},
        throttled_when_ready={"a": {"nr_throttled": 5}},
    )
    seen = read_worker("echo", 7, archive, {"pid": 7}, "", state, proc.path)
    assert seen.launcher == LAUNCHER
    assert seen.thread_cpus == {"7": (2, 3), "10": (2,)}
    assert seen.memory_policies == {"bind:0": 2, "local": 1}
    assert seen.libraries == ("/kit/a folder/libiomp5.so", "/usr/lib/libjemalloc.so.2")
    assert seen.environment == {"OMP_NUM_THREADS": "2"}
    assert (seen.archive_id, seen.throttled_loading) == (archive.archive_id, 4)


def test_a_worker_that_is_gone_is_none_everywhere(proc, archive):
    seen = read_worker("echo", 7, archive, None, "timed out", None, proc.path)
    assert (seen.thread_cpus, seen.memory_policies, seen.libraries, seen.environment, seen.launcher) == (
        None,
    ) * 5
    assert seen.describe_problem == "timed out"


def test_a_worker_without_launcher_says_so(proc):
    proc.add(6, command=("java",))
    proc.add(7, command=("python", SCRIPT), parent=6)
    assert read_launcher(7, proc.path) is None


def test_describe_is_asked_until_every_worker_has_answered(torchserve, run):
    answers = itertools.chain([8, 8, 8], itertools.repeat(7))
    torchserve.routes = {
        "GET /models/bert?customized=true": lambda: (200, [{"customizedMetadata": {"pid": next(answers)}}])
    }
    client = Client(inference_url=torchserve.url, management_url=torchserve.url, key_file=run.key_file)
    found, _ = collect_descriptions("bert", client, {7, 8})
    assert set(found) == {7, 8}


def test_a_worker_that_never_answers_gives_the_reason(torchserve, run):
    torchserve.routes = {"GET /models/bert?customized=true": (500, {"message": "Failed to get customized"})}
    client = Client(inference_url=torchserve.url, management_url=torchserve.url, key_file=run.key_file)
    found, problem = collect_descriptions("bert", client, {7}, seconds=0.1)
    assert found == {}
    assert "answered 500" in problem


@pytest.mark.parametrize(("text", "cpus"), [("0", (0,)), ("0-2,5", (0, 1, 2, 5)), ("3,7-8", (3, 7, 8))])
def test_cpu_lists_are_read(text, cpus):
    assert parse_cpu_list(text) == cpus


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
