"""`python -m config`: exit codes, messages, files."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.__main__ import build_parser, main, read_facts
from config.folders import hold_lock
from config.plan import read_plan
from config.tuned import Tuned, describe_present, read_tuned, write_tuned
from tests.config.planning import MACHINES
from tests.server.fakes import make_archive

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def arguments(tmp_path):
    """Options for a run on a recorded machine with one small model."""
    (tmp_path / "store").mkdir()
    memory = {"ipex fp32": {"worker_mib": 500, "request_mib": 100}}
    make_archive(tmp_path / "store/tiny.mar", name="tiny", batch_sizes=[1, 8], memory=memory)
    return [
        "--topology", str(MACHINES / "two-cores"), "--models", "tiny", "--run-dir", str(tmp_path / "run"),
        "--prefix", "/kit/.venv", "--model-store", str(tmp_path / "store"),
    ]  # fmt: skip


def test_each_instance_has_a_folder(arguments, tmp_path):
    assert main(arguments) == 0
    run = tmp_path / "run"
    files = sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file())
    own = [".cpu-kit", "config.properties", "environment", "plan.json", "start.lock"]
    assert files == [
        ".cpu-kit", "haproxy.cfg",
        *(f"instances/{name}/{file}" for name in ("a1", "a2") for file in own), "plan.json", "start.lock",
    ]  # fmt: skip
    assert [*read_plan(run).instances] == ["a1", "a2"]
    inner = read_plan(run / "instances/a2")
    assert (inner.inputs.port, inner.inputs.run_dir) == (8100, f"{run}/instances/a2")
    assert "inference_address=unix:/" in (run / "instances/a2/config.properties").read_text()


def test_a_second_run_writes_the_same_bytes(arguments, tmp_path):
    def read():
        return {file: file.read_bytes() for file in tmp_path.rglob("run/**/*") if file.is_file()}

    main([*arguments, "--batch", "tiny=1"])
    first = read()
    main([*arguments, "--batch", " tiny=1 "])
    assert first == read()
    assert len(first) == 4 + 2 * 5


def test_the_other_generation_leaves_the_one_that_serves(arguments, tmp_path):
    main(arguments)
    main([*arguments, "--generation", "b", "--instances", "1"])
    assert sorted(folder.name for folder in (tmp_path / "run/instances").iterdir()) == ["a1", "a2", "b1"]
    assert [*read_plan(tmp_path / "run").instances] == ["b1"]


@pytest.mark.parametrize("folder", ["run", "run/instances/a2"])
def test_where_one_starts_nothing_is_written(arguments, tmp_path, capsys, folder):
    main(arguments)
    before = (tmp_path / "run/plan.json").read_bytes()
    with hold_lock(tmp_path / folder):
        assert main([*arguments, "--profile", "latency", "--instances", "2"]) == 2
    assert f"another start is under way in {tmp_path}/{folder}" in capsys.readouterr().err
    assert (tmp_path / "run/plan.json").read_bytes() == before
    assert read_plan(tmp_path / "run/instances/a1").inputs.profile == "throughput"


def test_a_dry_run_prints_every_instance(arguments, tmp_path, capsys):
    assert main([*arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    first, second = (out.index(f"\nINSTANCE {name}\n") for name in ("a1", "a2"))
    assert first < out.index("inference_address=unix:") < second < out.rindex("inference_address=unix:")
    assert not (tmp_path / "run").exists()


def test_empty_means_not_given(arguments, tmp_path):
    names = ("precision", "profile", "workers", "cores-per-worker", "allocator", "openmp", "port",
             "instances", "deadline-ms", "tls-cert", "tls-key", "generation", "batch",
             "delay-ms", "slo-p99-ms", "timings", "tuned")  # fmt: skip
    assert main([*arguments, *(part for name in names for part in (f"--{name}", ""))]) == 0
    assert read_plan(tmp_path / "run").inputs.port == 8080


@pytest.mark.parametrize("given", [[], ["--models", ""]])
def test_models_have_a_default_and_must_be_built(given, tmp_path, capsys):
    where = ["--topology", str(MACHINES / "two-cores"), "--model-store", str(tmp_path)]
    assert main([*where, *given, "--precision", "int8", "--run-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        f"config: no archive of bert, resnet50 in {tmp_path}; "
        "build it with: make models PRECISION=int8 MODELS='bert resnet50'\n"
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("--precision", "bf16"), ("--workers", "two"), ("--off", "trace,fuse"), ("--models", "resnet"),
     ("--topology", "/nowhere")],
)  # fmt: skip
def test_wrong_value(arguments, tmp_path, capsys, option, value):
    assert main([*arguments, option, value]) == 2
    assert capsys.readouterr().err.startswith("config: ")
    assert not (tmp_path / "run").exists()


def test_what_is_off_is_recorded_in_one_order(arguments, tmp_path):
    assert main([*arguments, "--off", "trace, buckets,trace"]) == 0
    assert read_plan(tmp_path / "run").inputs.off == ("buckets", "trace")


def test_a_timing_job_is_one_line_and_writes_nothing(arguments, tmp_path, capsys):
    assert main([*arguments, "--timing-job"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    job = json.loads(line)
    assert job["models"] == {"tiny": {"variant": "ipex fp32", "batches": [1, 4, 8]}}
    assert job["settings"]["slots"] == [[0], [1]]
    assert not (tmp_path / "run").exists()


def test_what_becomes_of_a_tuned_plan_is_one_line(arguments, tmp_path, capsys):
    file = tmp_path / "run/tuned.json"
    tuned = [*arguments, "--tuned", str(file)]
    assert main(tuned) == 0
    assert "tuned:" not in capsys.readouterr().out
    made_for = {"cpu_model": "another"}
    write_tuned(file, Tuned(made_for=made_for, limit={"percentile": 99, "ms": 200}, chosen={"workers": 1}))
    assert main(tuned) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("tuned: not used, stale: cpu model: another → ")
    facts = read_facts(build_parser().parse_args(arguments))
    write_tuned(file, dataclasses.replace(read_tuned(file), made_for=describe_present(facts[0], facts[2])))
    assert main(tuned) == 0
    said = f"tuned: used, for p99 ≤ 200 ms: workers 1 ({file})"
    assert capsys.readouterr().out.splitlines()[1] == said
    assert read_plan(tmp_path / "run").layout.workers_per_model.value == 1
    assert read_plan(tmp_path / "run").inputs.workers is None
    assert main([*tuned, "--timing-job"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["slots"] == [[0, 1]]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"tuned: not used, TUNED=0: {file}"


def test_a_folder_that_cannot_be_written_is_one_line(arguments, tmp_path, capsys, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path / "run/plan.json"))

    monkeypatch.setattr("config.write.write_plan", refuse)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(
        f"config: Permission denied: {tmp_path}/run/plan.json (asked as "
    )


def test_an_unpinned_plan_says_so_with_its_reason(arguments, capsys):
    assert main([*arguments, "--no-pinning"]) == 0
    line = capsys.readouterr().out
    assert "cores 1 · NOT PINNED: switched off with --no-pinning: a baseline · fp32" in line
    assert main(arguments) == 0
    assert "PINNED" not in capsys.readouterr().out


def test_a_plan_is_told_of_in_a_locale_without_its_signs(arguments):
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "config", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=latin, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert " → ".encode() in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--precision", "int9", "PRECISION must be one of fp32, bf16, int8"),
        ("--allocator", "mimalloc", "ALLOCATOR must be one of jemalloc, tcmalloc, system"),
        ("--workers", "two", "WORKERS must be a whole number: got two"),
        ("--port", "70000", "PORT must be 1 to"),
        ("--tls-cert", "/nowhere.pem", "TLS_CERT must be a file that can be read: got /nowhere.pem"),
        ("--workers", "", ""),
    ],
)
def test_values_are_judged_before_anything_is_installed(option, value, text, tmp_path):
    """By the system's Python, and before the models' definitions can be read."""
    command = [sys.executable, "-S", "-m", "config", "--check", option, value, f"--run-dir={tmp_path}/run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.startswith(f"config: {text}" if text else "")
    assert bool(done.returncode) is bool(text)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("before", ["the set-up", "it is written"])
def test_a_run_directory_of_others_is_refused(arguments, tmp_path, capsys, before):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/environment").write_text("PATH=/usr/bin")
    assert main([*arguments, *(["--check"] if before == "the set-up" else [])]) == 2
    assert "RUN_DIR must be a new or empty folder, or one of the kit's" in capsys.readouterr().err
    assert [file.read_text() for file in (tmp_path / "run").iterdir()] == ["PATH=/usr/bin"]
