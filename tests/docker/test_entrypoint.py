"""What the container takes from its environment, what it rejects, and that it becomes the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from config.errors import ConfigError
from config.settings import read_settings
from docker import __main__ as image
from docker import entrypoint
from docker.entrypoint import main, make_arguments
from server.rundir import RunDir


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    """The container's folders."""
    for name in ("store", "run"):
        (tmp_path / name).mkdir()
    for name in ("bert", "resnet50"):
        (tmp_path / f"store/{name}.mar").touch()
    monkeypatch.setattr(entrypoint, "STORES", (tmp_path / "store", tmp_path / "models"))
    monkeypatch.setattr(entrypoint, "RUN_DIR", tmp_path / "run")
    monkeypatch.setattr(entrypoint, "SECRET", tmp_path / "secret")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read():
    """As the server reads it."""
    return read_settings(make_arguments())


def test_every_archive_is_served_unless_models_are_named(inside, monkeypatch):
    assert read().models == ("bert", "resnet50")
    (inside / "kit.toml").write_text("[models.bert]\nbatch = 8\n")
    assert (read().models, read().batch) == (("bert",), {"bert": 8})
    monkeypatch.setenv("KIT_MODELS", "resnet50")
    assert (read().models, read().batch) == (("resnet50",), {})
    monkeypatch.setenv("KIT_MODELS", "bert vgg16")
    with pytest.raises(ConfigError, match=r"no archive of vgg16 in .*: got bert, resnet50; mount"):
        read()
    monkeypatch.delenv("KIT_MODELS")
    (inside / "kit.toml").unlink()
    for file in (inside / "store").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match=r"no archive in .*: got nothing; mount a folder"):
        read()


def test_addresses_are_all_of_the_container_unless_they_are_given(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    assert (read().host, read().metrics) == ("::", "[::]:8082")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert (read().host, read().metrics) == ("0.0.0.0", "0.0.0.0:8082")
    monkeypatch.setenv("KIT_HOST", "127.0.0.1")
    monkeypatch.setenv("KIT_METRICS", "127.0.0.1:9100")
    assert (read().host, read().metrics) == ("127.0.0.1", "127.0.0.1:9100")


def test_archives_may_lie_where_kserve_puts_them(inside):
    (inside / "store").rename(inside / "models")
    assert (read().models, read().model_store) == (("bert", "resnet50"), f"{inside}/models")


def test_settings_reach_the_server(inside, monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    for name, value in {
        "CORES_PER_WORKER": "2",
        "BATCH": "bert=4",
        "DEADLINE_MS": "2000",
        "WORKERS": "",
    }.items():
        monkeypatch.setenv(f"KIT_{name}", value)
    settings = read()
    assert (settings.cores_per_worker, settings.batch, settings.deadline_ms) == (2, {"bert": 4}, 2000)
    assert (settings.host, settings.workers, settings.token_file) == ("::", None, "")
    assert (settings.model_store, settings.run_dir) == (f"{inside}/store", f"{inside}/run")
    (inside / "secret").touch()
    assert read().token_file == f"{inside}/secret"


def test_what_else_is_in_a_containers_environment_is_no_concern(monkeypatch):
    """Kubernetes adds a service's names, and settings of other programs may be shared."""
    for name in (
        "MODELS_PORT",
        "MODELS_SERVICE_HOST",
        "CPU_KIT_PORT",
        "WEIGHTS",
        "USER",
        "PORT",
        "PRECISION",
    ):
        monkeypatch.setenv(name, "x")
    assert (read().models, read().port) == (("bert", "resnet50"), 8080)
    monkeypatch.setenv("KIT_PRECISON", "int8")
    with pytest.raises(ConfigError, match="unknown setting PRECISON; did you mean PRECISION"):
        read()


class ReplacedError(Exception):
    """The process is another program now."""


def test_it_becomes_the_server_in_the_foreground(inside, monkeypatch):
    def replace(program, words):
        assert program == sys.executable
        assert words[2:6] == ["server", "serve", "--built", "--hide-token"]
        assert {"FOREGROUND=1", f"RUN_DIR={inside}/run", "INSECURE=1"} <= {*words}
        raise ReplacedError

    run = RunDir.at(inside / "run")
    run.failure.write_text("of an earlier run")
    monkeypatch.setattr(entrypoint, "pass_logs_on", lambda *_: None)
    monkeypatch.setattr(entrypoint.os, "execv", replace)
    with pytest.raises(ReplacedError):
        main([])
    assert not run.failure.exists()


def test_without_archives_it_ends_with_the_code_of_a_wrong_value(monkeypatch, capsys):
    monkeypatch.setenv("KIT_MODELS", "vgg16")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: no archive of vgg16")


def test_a_reload_plans_as_the_start_did(monkeypatch):
    called = []
    monkeypatch.setattr(entrypoint.cli, "main", lambda words: called.extend(words) or 0)
    assert main(["reload"]) == 0
    assert called == ["reload", "--built", *make_arguments()]


PROGRAM = """
import sys, time
from docker.entrypoint import pass_logs_on
from server.rundir import RunDir
run = RunDir.at(sys.argv[1])
pass_logs_on(run, "text")
time.sleep(2)
run.proxy_log.rename(run.path / "moved")
run.proxy_log.write_text("proxy\\n")
log = run.instance("b2").model_log
log.parent.mkdir(parents=True)
log.write_text("worker\\n")
time.sleep(3)
"""


def test_logs_reach_standard_output_but_not_those_of_an_earlier_run(inside):
    run = RunDir.at(inside / "run")
    run.proxy_log.parent.mkdir()
    run.proxy_log.write_text("of an earlier run\n")
    words = [sys.executable, "-c", PROGRAM, str(run.path)]
    with (inside / "out").open("w") as out:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(words, stdout=out, check=True, env=environment)
    lines = (inside / "out").read_text().splitlines()
    assert {"proxy", "worker", f"==> {run.instance('b2').model_log} <=="} <= set(lines)
    assert "of an earlier run" not in lines


def test_an_image_is_one_docker_build():
    command = image.make_command(["BACKEND=bert=eager", "ARGS=--tag 'my kit' --pull"], "abc")
    assert command[:6] == ["docker", "build", "--file", "docker/Dockerfile", "--tag", image.TAG]
    assert command[6:] == [
        "--build-arg", "BACKEND=bert=eager", "--build-arg", "REVISION=abc", "--tag", "my kit", "--pull", ".",
    ]  # fmt: skip
    baked = image.make_command(["MODELS=resnet50 bert", "WEIGHTS=random"], "")
    assert {"MODELS=bert resnet50", "WEIGHTS=random"} <= {*baked}
