"""TorchServe is started with exactly the planned environment, folders and links."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from server.errors import ServerError
from server.launch import (
    LOG_CONFIG,
    check_machine,
    confine,
    launch,
    make_allocator_link,
    prepare_folders,
    render_environment,
)
from tests.server.fakes import as_settings, with_layout


def with_libraries(plan, **values):
    return dataclasses.replace(plan, libraries=dataclasses.replace(plan.libraries, **as_settings(**values)))


def test_the_environment_is_the_plans(plan, run):
    got = render_environment(plan, run, {"PATH": "/usr/bin", "MALLOC_CONF": "stray"})
    assert {name: got[name] for name in plan.environment} == {
        name: setting.value for name, setting in plan.environment.items()
    }
    assert got["PATH"] == "/kit/.venv/bin:/usr/bin"
    assert got["VIRTUAL_ENV"] == "/kit/.venv"
    assert got["TMPDIR"] == got["TEMP"] == str(run.temporary)
    assert got["CPU_KIT_RUN"] == str(run.path)


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LANG": "de_DE.ISO-8859-1", "LC_CTYPE": "POSIX"}])
def test_java_opens_any_file_whatever_the_callers_locale(plan, run, locale):
    got = render_environment(plan, run, locale)
    assert {name: got[name] for name in got if name[:3] in ("LC_", "LAN")} == {"LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "TS_CONFIG_FILE", "TS_IPEX_ENABLE", "LD_PRELOAD",
        "MAKEFLAGS", "OMP_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME", "GOMP_CPU_AFFINITY",
        "MKL_NUM_THREADS", "MALLOC_ARENA_MAX", "_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS",
        "PYTORCH_JIT", "LD_LIBRARY_PATH", "IPEX_FP32_MATH_MODE", "ATEN_CPU_CAPABILITY", "PYTHONOPTIMIZE",
        "PYTHONSTARTUP", "CUDA_VISIBLE_DEVICES", "GLIBC_TUNABLES", "LANG", "LC_CTYPE",
    ],
)  # fmt: skip
def test_what_the_shell_has_set_does_not_reach_the_workers(plan, run, name):
    assert name not in render_environment(plan, run, {name: "stray"})


def test_what_says_nothing_of_speed_is_kept(plan, run):
    own = dict.fromkeys(("HOME", "JAVA_HOME", "TZ", "ACCESS_LOG_LEVEL"), "own")
    assert own.items() <= render_environment(plan, run, own).items()


def test_the_allocator_link_is_made_once(plan, tmp_path):
    library, link = tmp_path / "libjemalloc.so.2", tmp_path / "lib" / "libjemalloc.so"
    library.touch()
    plan = with_libraries(plan, allocator_path=str(library), allocator_link=str(link))
    assert make_allocator_link(plan) == f"linked {link} to {library}"
    assert link.resolve() == library
    assert make_allocator_link(plan) is None


def test_a_wrong_or_broken_link_is_replaced_and_others_stay(plan, tmp_path):
    library, link, other = (
        tmp_path / name for name in ("libtcmalloc.so.4", "libtcmalloc.so", "libjemalloc.so")
    )
    library.touch()
    link.symlink_to(tmp_path / "gone")
    other.symlink_to(library)
    plan = with_libraries(plan, allocator_path=str(library), allocator_link=str(link))
    make_allocator_link(plan)
    assert link.resolve() == library
    assert other.is_symlink()


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


def test_a_plan_for_a_recorded_machine_is_not_started(plan):
    other = dataclasses.replace(plan, inputs=dataclasses.replace(plan.inputs, topology="tests/machine"))
    with pytest.raises(ServerError, match="tests/machine"):
        check_machine(other)


def test_a_plan_with_cpus_we_may_not_use_is_not_started(plan):
    with pytest.raises(ServerError, match="the plan uses CPU 4095, which this process may not use"):
        check_machine(with_layout(plan, worker_cpus=[[min(os.sched_getaffinity(0))], [4095]]))


def test_torchserve_is_confined_before_it_starts(plan):
    cpu = max(os.sched_getaffinity(0))
    confined = with_layout(plan, server_cpus=[cpu])
    code = "import os; print(*os.sched_getaffinity(0))"
    output = subprocess.check_output([sys.executable, "-c", code], preexec_fn=lambda: confine(confined))
    assert output.split() == [str(cpu).encode()]


def test_the_log_configuration_limits_every_file_and_logs_no_request():
    root = ElementTree.parse(LOG_CONFIG).getroot()
    files = root.findall("./Appenders/RollingFile")
    assert len(files) == 4
    assert all(
        "%i" in file.attrib["filePattern"] and file.find("SizeBasedTriggeringPolicy") is not None
        for file in files
    )
    # console.log has no limit, and a stranger's malformed URL is an error with a stack trace
    assert root.findall("./Appenders/Console") == []
    assert [one.attrib["ref"] for one in root.findall("./Loggers/Root/AppenderRef")] == ["ts_log"]
    levels = {logger.attrib["name"]: logger.attrib["level"] for logger in root.findall("./Loggers/Logger")}
    assert levels["ACCESS_LOG"] == "${access_level}"
    assert (
        levels["org.pytorch.serve.wlm.WorkerThread"] == "debug"
    )  # its state changes are what the start watches


@pytest.mark.parametrize("mode", [0o777, 0o644])
def test_a_file_system_without_permissions_is_refused_before_the_start(run, monkeypatch, mode):
    chmod = Path.chmod
    monkeypatch.setattr(Path, "chmod", lambda self, _: chmod(self, mode))
    with pytest.raises(ServerError, match=f"RUN_DIR must be .* {mode:o}"):
        prepare_folders(run)


def test_without_its_class_nothing_is_started(plan, run, tmp_path):
    """It rejects gRPC: a server without it would be open to every user of the machine."""
    prepare_folders(run)
    (run.path / "config.properties").touch()
    (tmp_path / "bin").mkdir()
    for name in ("python", "torchserve"):
        (tmp_path / "bin" / name).touch()
    inputs = dataclasses.replace(plan.inputs, prefix=str(tmp_path))
    with pytest.raises(ServerError, match=r"^missing: .*/lib/cpukit/org; run: make setup"):
        launch(dataclasses.replace(plan, inputs=inputs), run, tmp_path)


def test_what_torchserve_writes_is_private_from_the_first_instant(plan, run, tmp_path):
    """Sockets too; and its class path begins with the working directory."""
    prepare_folders(run)
    (run.path / "config.properties").touch()
    prefix = tmp_path / "env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib/cpukit/org").mkdir(parents=True)
    (prefix / "bin/torchserve").write_text(
        "import os; open('a', 'w').close(); assert os.listdir('org') == []"
    )
    (prefix / "bin/python").symlink_to(sys.executable)
    inputs = dataclasses.replace(plan.inputs, prefix=str(prefix))
    for _ in range(2):
        assert launch(dataclasses.replace(plan, inputs=inputs), run, tmp_path).wait(60) == 0
    assert (run.path / "a").stat().st_mode & 0o777 == 0o600
    assert run.logs.stat().st_mode & 0o777 == 0o700
