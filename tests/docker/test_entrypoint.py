"""What the container takes from its environment, what it rejects, and that it becomes the server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from config.__main__ import build_parser
from config.errors import ConfigError
from docker import entrypoint
from docker.entrypoint import main, read_arguments
from server.rundir import RunDir
from tests.server.fakes import RECORDED


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    """The container's folders."""
    for name in ("store", "run"):
        (tmp_path / name).mkdir()
    for name in ("bert", "resnet50"):
        (tmp_path / f"store/{name}.mar").touch()
    monkeypatch.setattr(entrypoint, "MODEL_STORE", tmp_path / "store")
    monkeypatch.setattr(entrypoint, "RUN_DIR", tmp_path / "run")
    monkeypatch.setattr(entrypoint, "SECRET", tmp_path / "secret")
    return tmp_path


def read(**environment: str):
    """As the planner reads it."""
    return build_parser().parse_args(read_arguments(environment))


def test_every_archive_is_served_unless_models_are_named(inside):
    assert read().models == "bert resnet50"
    assert read(MODELS="resnet50").models == "resnet50"
    with pytest.raises(ConfigError, match=r"no archive of vgg16 in .*: got bert, resnet50; mount"):
        read(MODELS="bert vgg16")
    for file in (inside / "store").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match=r"no archive in .*: got nothing; mount a folder"):
        read()


def test_settings_reach_the_plan(inside):
    given = {"CORES_PER_WORKER": "2", "PRECISION": "bf16", "BACKEND": "bert=openvino", "DEADLINE_MS": "2000",
             "TLS_CERT": "/c", "TLS_KEY": "/k"}  # fmt: skip
    asked = read(**given, WORKERS="")
    assert {name: getattr(asked, name.lower()) for name in given} == given
    assert (asked.bind, asked.workers) == ("0.0.0.0", "")
    assert asked.tuned == str(inside / "run/tuned.json")
    assert read(TUNED="0").tuned == ""


@pytest.mark.parametrize(
    ("given", "meant"), [("PRECISON", "PRECISION"), ("workers", "WORKERS"), ("MODEL", "MODELS")]
)
def test_a_misspelt_name_is_rejected_with_the_right_one(given, meant):
    """Else it serves with the default, and nobody is told."""
    with pytest.raises(ConfigError, match=f"the environment has {given}, .*nearly {meant}; do: name it"):
        read(**{given: "y"})


def test_what_else_is_in_a_containers_environment_is_no_concern():
    """Kubernetes adds a service's names, and settings of other programs may be shared."""
    others = ("MODELS_PORT", "MODELS_SERVICE_HOST", "CPU_KIT_PORT", "WEIGHTS", "USER", "HOME", "OPENMPI")
    assert read(**dict.fromkeys(others, "x")).models == "bert resnet50"


@pytest.mark.parametrize("given", [{"TUNED": "yes"}, {"TLS_CERT": "x\n"}])
def test_a_value_that_cannot_be_used_is_rejected_by_name(given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))} must be "):
        read(**given)


def test_the_token_is_the_secret_where_there_is_one(inside):
    assert read().token_file == ""
    (inside / "secret").touch()
    assert read().token_file == str(inside / "secret")


def test_a_wrong_value_ends_it_and_what_an_earlier_run_said_is_gone(inside, monkeypatch, capsys):
    """Else the health check believes it."""
    run = RunDir.at(inside / "run")
    for file in (run.health, run.failure):
        file.write_text("ready\n")
    monkeypatch.setenv("PROFILE", "fast")
    assert main([]) == 2
    assert "PROFILE must be one of throughput, latency: got fast" in capsys.readouterr().err
    assert not run.health.exists()
    assert not run.failure.exists()
    monkeypatch.setenv("MODELS", "vgg16")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: no archive of vgg16")


class ReplacedError(Exception):
    """The process is another program now."""


def test_it_becomes_the_server_in_the_foreground(inside, monkeypatch):
    def plan(arguments):
        (inside / "run/plan.json").write_bytes((RECORDED / "plan.json").read_bytes())
        return 0

    def replace(program, words):
        assert program == sys.executable
        assert {"start", "--foreground", "--hide-token", str(inside / "run")} <= set(words)
        raise ReplacedError

    monkeypatch.setattr(entrypoint.planning, "main", plan)
    monkeypatch.setattr(entrypoint, "pass_logs_on", lambda _: None)
    monkeypatch.setattr(entrypoint.os, "execv", replace)
    with pytest.raises(ReplacedError):
        main([])


PROGRAM = """
import sys, time
from docker.entrypoint import pass_logs_on
from server.rundir import RunDir
run = RunDir.at(sys.argv[1])
pass_logs_on(run)
time.sleep(2)
run.door_log.rename(run.path / "moved")
run.door_log.write_text("door\\n")
log = run.instance("b2").model_log
log.parent.mkdir(parents=True)
log.write_text("worker\\n")
time.sleep(3)
"""


def test_logs_reach_standard_output_but_not_those_of_an_earlier_run(inside):
    run = RunDir.at(inside / "run")
    run.door_log.parent.mkdir()
    run.door_log.write_text("of an earlier run\n")
    words = [sys.executable, "-c", PROGRAM, str(run.path)]
    with (inside / "out").open("w") as out:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(words, stdout=out, check=True, env=environment)
    lines = (inside / "out").read_text().splitlines()
    assert {"door", "worker", f"==> {run.instance('b2').model_log} <=="} <= set(lines)
    assert "of an earlier run" not in lines


def test_a_reload_plans_as_the_start_did(inside, monkeypatch):
    asked = []
    monkeypatch.setattr(entrypoint.cli, "main", lambda words: asked.extend(words) or 0)
    monkeypatch.setenv("DEADLINE_MS", "5000")
    assert main(["reload"]) == 0
    assert asked == ["reload", "--run-dir", str(inside / "run"), "--", *read_arguments(os.environ)]
