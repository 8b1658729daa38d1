"""TorchServe is started with exactly the planned environment, folders and links."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from server.errors import ServerError
from server.launch import (
    LOG_CONFIG,
    check_machine,
    confined,
    launch,
    list_server_cpus,
    make_allocator_link,
    prepare_folders,
    render_environment,
)
from tests.plans import make_model


def with_libraries(plan, **values):
    return replace(plan, libraries=replace(plan.libraries, **values))


def with_instance(plan, **values):
    return replace(plan, instances={**plan.instances, "a1": replace(plan.instances["a1"], **values)})


STRAY = (
    "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "TS_CONFIG_FILE", "TS_IPEX_ENABLE", "LD_PRELOAD",
    "MAKEFLAGS", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME", "GOMP_CPU_AFFINITY",
    "MKL_NUM_THREADS", "MALLOC_ARENA_MAX", "_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS",
    "PYTORCH_JIT", "LD_LIBRARY_PATH", "IPEX_FP32_MATH_MODE", "ATEN_CPU_CAPABILITY", "PYTHONOPTIMIZE",
    "PYTHONSTARTUP", "CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES", "LANG", "LC_CTYPE", "MALLOC_CONF",
)  # fmt: skip


def test_the_environment_is_the_plans_and_of_the_shell_what_says_nothing_of_speed(plan, run):
    own = dict.fromkeys(("HOME", "JAVA_HOME", "TZ", "ACCESS_LOG_LEVEL"), "own")
    shell = {"PATH": "/usr/bin", "LC_ALL": "C", **own, **dict.fromkeys(STRAY, "stray")}
    found = render_environment(plan, "a1", run, shell)
    assert {**plan.instances["a1"].environment, **own}.items() <= found.items()
    assert "stray" not in found.values()
    assert found["PATH"] == "/kit/.venv/bin:/usr/bin"
    assert found["VIRTUAL_ENV"] == "/kit/.venv"
    assert found["TMPDIR"] == found["TEMP"] == str(run.temporary)
    assert found["CPU_KIT_RUN"] == str(run.path)
    assert found["LC_ALL"] == "C.UTF-8"  # Java opens any file whatever the caller's locale


def test_the_allocator_link_is_made_once_and_a_broken_one_replaced(plan, tmp_path):
    library, link, other = (tmp_path / name for name in ("so.4", "lib/libtcmalloc.so", "lib/libjemalloc.so"))
    library.touch()
    plan = with_libraries(plan, allocator_path=str(library), allocator_link=str(link))
    assert make_allocator_link(plan) == f"linked {link} to {library}"
    assert link.resolve() == library
    assert make_allocator_link(plan) is None
    link.unlink()
    for one in (link, other):
        one.symlink_to(tmp_path / "gone")
    make_allocator_link(plan)
    assert link.resolve() == library
    assert other.is_symlink()  # of another run directory


def test_two_instances_make_the_allocator_link_at_the_same_time(plan, tmp_path, monkeypatch):
    library, link = tmp_path / "so.4", tmp_path / "lib/libjemalloc.so"
    library.touch()
    plan = with_libraries(plan, allocator_path=str(library), allocator_link=str(link))
    both, symlink = threading.Barrier(2), Path.symlink_to
    monkeypatch.setattr(Path, "symlink_to", lambda new, to: (both.wait(10), symlink(new, to)))
    with ThreadPoolExecutor(2) as pool:
        said = [*pool.map(make_allocator_link, [plan, plan])]
    assert said == [f"linked {link} to {library}"] * 2
    assert (link.resolve(), [*link.parent.iterdir()]) == (library, [link])


@pytest.mark.parametrize("path", [None, "/nowhere/libjemalloc.so.2"])
def test_a_missing_allocator_is_an_error(plan, path):
    plan = with_libraries(plan, allocator_path=path, allocator_link="/kit/lib/libjemalloc.so")
    with pytest.raises(ServerError, match="ALLOCATOR=jemalloc"):
        make_allocator_link(plan)


def test_logs_of_the_last_start_are_kept_once(run):
    run.logs.mkdir()
    (run.logs / "ts_log.log").write_text("old")
    run.previous_logs.mkdir()
    (run.previous_logs / "older").touch()
    prepare_folders(run)
    assert [file.name for file in run.previous_logs.iterdir()] == ["ts_log.log"]
    assert list(run.logs.iterdir()) == []
    assert run.temporary.stat().st_mode & 0o777 == 0o700


def test_a_plan_for_a_recorded_machine_or_with_cpus_we_may_not_use_is_not_started(plan):
    with pytest.raises(ServerError, match="recorded machine"):
        check_machine(replace(plan, live=False))
    with pytest.raises(ServerError, match="the plan uses CPU 4095, which this process may not use"):
        check_machine(with_instance(plan, worker_cpus=((min(os.sched_getaffinity(0)),), (4095,))))


def test_the_proxy_and_the_supervisor_are_confined_to_what_the_instances_are(plan):
    assert list_server_cpus(plan) == (0, 1)
    assert list_server_cpus(with_instance(plan, server_cpus=None)) is None


def test_what_is_started_is_confined_and_we_are_not():
    before, cpu = os.sched_getaffinity(0), max(os.sched_getaffinity(0))
    with confined([cpu]):
        output = subprocess.check_output([sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"])
    assert output.split() == [str(cpu).encode()]
    assert os.sched_getaffinity(0) == before


def test_the_log_configuration_limits_every_file_and_logs_no_request():
    root = ElementTree.parse(LOG_CONFIG).getroot()
    files = root.findall("./Appenders/RollingFile")
    assert len(files) == 4
    assert all(
        "%i" in file.attrib["filePattern"] and file.find("SizeBasedTriggeringPolicy") is not None
        for file in files
    )
    # console.log has no limit, and a malformed URL is an error with a stack trace
    assert root.findall("./Appenders/Console") == []
    assert [one.attrib["ref"] for one in root.findall("./Loggers/Root/AppenderRef")] == ["ts_log"]
    levels = {logger.attrib["name"]: logger.attrib["level"] for logger in root.findall("./Loggers/Logger")}
    assert levels["ACCESS_LOG"] == "${access_level}"
    # Its state changes are what the start watches.
    assert levels["org.pytorch.serve.wlm.WorkerThread"] == "debug"


@pytest.mark.parametrize("mode", [0o777, 0o644])
def test_a_file_system_without_permissions_is_rejected_before_the_start(run, monkeypatch, mode):
    chmod = Path.chmod
    monkeypatch.setattr(Path, "chmod", lambda self, _: chmod(self, mode))
    with pytest.raises(ServerError, match=f"RUN_DIR must be .* {mode:o}"):
        prepare_folders(run)


@pytest.fixture
def installed(plan, run, tmp_path):
    """A plan whose environment has a `torchserve` that looks at what it was given."""
    prepare_folders(run)
    (run.path / "config.properties").touch()
    prefix = tmp_path / "env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib/cpukit/org").mkdir(parents=True)
    (prefix / "bin/torchserve").write_text(
        "import os, sys; open('a', 'w').close(); assert os.listdir('org') == []; print(*sys.argv[1:])"
    )
    (prefix / "bin/python").symlink_to(sys.executable)
    return with_instance(replace(plan, prefix=str(prefix)), server_cpus=None)


def test_without_its_class_nothing_is_started(installed, run):
    """It rejects gRPC: a server without it would be open to every user of the machine."""
    (Path(installed.prefix) / "lib/cpukit/org").rmdir()
    with pytest.raises(ServerError, match=r"^missing: .*/lib/cpukit/org; run: make setup"):
        launch(installed, "a1", run)


def test_what_torchserve_writes_is_private_from_the_first_instant(installed, run):
    """Sockets too; and its class path begins with the working directory."""
    for _ in range(2):
        assert launch(installed, "a1", run).wait(60) == 0
    assert (run.path / "a").stat().st_mode & 0o777 == 0o600
    assert run.logs.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kit", [True, False])
def test_archives_that_others_made_are_linked_into_a_store_of_the_instance(installed, run, tmp_path, kit):
    model = make_model("old", kit=kit, archives={"1.0": f"{tmp_path}/old.mar", "2.0": f"{tmp_path}/new.mar"})
    plan = with_instance(installed, kit=kit, models={"old": model})
    for name in ("old.mar", "new.mar"):
        (tmp_path / name).touch()
    for _ in range(2):  # a start after a start
        assert launch(plan, "a1", run).wait(60) == 0
    words = run.console_log.read_text().split()
    store = Path(words[words.index("--model-store") + 1])
    if kit:
        assert store == Path(plan.model_store)
    else:
        assert {file.name: file.resolve() for file in store.iterdir()} == {
            name: tmp_path / name for name in ("old.mar", "new.mar")
        }
