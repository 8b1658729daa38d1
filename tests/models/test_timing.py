"""Timing precisions: a real one of small archives, what is kept of it, when it is taken again, failures."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from models import __main__ as command
from models import timings
from models.errors import BuildError, InputError
from models.timing import MIN_BATCHES, WARM_UP_BATCHES, time_batches

CPU = min(os.sched_getaffinity(0))
SETTINGS = {
    "cpu_model": "this one",
    "ipex": False,  # an import of IPEX takes seconds, and nothing here is about it
    "off": [],
    "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
}


def make_job(name: str = "tiny_image", **changes: Any) -> str:
    """As config prints it."""
    model = {"batch_sizes": {"fp32": 2, "bf16": 4}, "impossible": {"int8": "needs IPEX: got --no-ipex"}}
    return json.dumps({"cpu": CPU, "settings": SETTINGS, "models": {name: model}, **changes})


@pytest.fixture
def store(tmp_path: Path, tiny_image_archive: Path) -> Path:
    shutil.copy(tiny_image_archive, tmp_path)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precisions that were timed, by a stand-in that takes no time; bf16 is twice as fast."""
    asked: list[str] = []

    def measure(self: timings.Trial, staging: Path, precision: str, size: int) -> dict[str, Any]:
        asked.append(precision)
        second = {"fp32": 0.5, "bf16": 0.25}[precision]
        timing = {"batches": 5, "lowest_s": second, "median_s": second, "highest_s": second}
        return timings.make_entry(timing, size, None)

    monkeypatch.setattr(timings.Trial, "_measure_one", measure)
    return asked


def time_store(store: Path, job: str | None = None) -> dict[str, Any]:
    output = store / "run" / "timings.json"
    job_ = timings.parse_job(job or make_job())
    timings.time_models(job_, store=store, output=output, workspaces=store / "build")
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("cost", "batches"), [(1.0, MIN_BATCHES), (0.5, MIN_BATCHES), (0.25, 10), (0.1, 25)])
def test_batches_are_timed_for_a_while_and_at_least_a_few(cost, batches):
    now = 0.0

    def answer():
        nonlocal now
        now += cost

    timing = time_batches(answer, clock=lambda: now)
    assert timing.batches in (batches, batches + 1)  # sums of tenths are not exact
    assert timing.median_s == pytest.approx(cost)
    assert now == pytest.approx((WARM_UP_BATCHES + timing.batches) * cost)


def test_the_first_batches_do_not_count():
    costs = iter([9.0] * WARM_UP_BATCHES + [1.0, 2.0, 1.0, 5.0, 1.0])
    now = 0.0

    def answer():
        nonlocal now
        now += next(costs)

    timing = time_batches(answer, clock=lambda: now)
    assert (timing.batches, timing.lowest_s, timing.median_s, timing.highest_s) == (5, 1.0, 1.0, 5.0)


def test_a_real_timing(store, capsys):
    capsys.readouterr()
    found = time_store(store)["models"]["tiny_image"]
    assert len(found["archive_id"]) == 64
    precisions = found["precisions"]
    assert precisions["int8"] == {"problem": "needs IPEX: got --no-ipex"}
    for precision, size in (("fp32", 2), ("bf16", 4)):
        entry = precisions[precision]
        assert entry["batch_size"] == size
        assert entry["batches"] >= MIN_BATCHES
        assert 0 < entry["lowest_s"] <= entry["median_s"] <= entry["highest_s"]
        assert entry["samples_per_second"] == pytest.approx(size / entry["median_s"], rel=0.02)
    assert "gate" not in precisions["fp32"]
    assert "% top-1 agreement with FP32 on " in precisions["bf16"]["gate"]
    lines = capsys.readouterr().out.splitlines()
    first, second, _ = (line for line in lines if not line.endswith(" s so far"))
    assert first == f"tiny_image: timing fp32, bf16 on CPU {CPU}"
    assert re.fullmatch(
        r"  tiny_image fp32: [\d.]+ samples/s on one core \(batch 2, \d+ batches [\d.]+-[\d.]+ s\)", second
    )
    assert list((store / "build").iterdir()) == []


def test_a_real_timing_of_texts_in_which_one_precision_does_not_load(tmp_path, tiny_text_archive):
    """In BF16 a random model this small fails its self-check, which every load makes."""
    shutil.copy(tiny_text_archive, tmp_path)
    precisions = time_store(tmp_path, make_job("tiny_text"))["models"]["tiny_text"]["precisions"]
    assert precisions["fp32"]["samples_per_second"] > 0
    assert precisions["bf16"]["problem"].startswith("cannot be loaded here: the optimised model differs")


def test_a_process_that_times_is_a_worker_in_small(store, monkeypatch):
    """One CPU from its first instruction on, the job's environment, and nothing of the shell's tuning."""
    seen: dict[str, Any] = {}
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setattr(timings.subprocess, "run", lambda command, **options: seen.update(options))
    trial = timings.Trial(
        name="m",
        archive=store,
        definition={"accuracy": {}},
        job=timings.parse_job(make_job()),
        workspaces=store,
    )
    with pytest.raises(AttributeError):  # nothing came back
        trial._measure_one(store, "bf16", 4)
    environment = seen["env"]
    assert json.loads(environment["CPU_KIT_OPTIONS"]) == {"m": {"precision": "bf16", "threads": 1, "off": []}}
    assert environment["TS_IPEX_ENABLE"] == "false"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert not {"OMP_DYNAMIC", "LD_PRELOAD"} & set(environment)
    before = os.sched_getaffinity(0)
    try:
        seen["preexec_fn"]()
        assert os.sched_getaffinity(0) == {CPU}
    finally:
        os.sched_setaffinity(0, before)


def test_what_was_timed_is_not_timed_again(store, measured, capsys):
    first = time_store(store)
    assert measured == ["fp32", "bf16"]
    capsys.readouterr()
    assert time_store(store) == first
    assert measured == ["fp32", "bf16"]
    assert capsys.readouterr().out == (
        "tiny_image: timed before on this host: bf16 16, fp32 4 samples/s on one core; "
        "int8: needs IPEX: got --no-ipex\n"
    )


def with_settings(**changes: Any) -> str:
    return make_job(settings={**SETTINGS, **changes})


@pytest.mark.parametrize(
    "job",
    [
        with_settings(cpu_model="another"),
        with_settings(ipex=True),
        with_settings(off=["freeze"]),
        with_settings(environment={"OMP_NUM_THREADS": "1"}),
    ],
)
def test_other_settings_are_timed_anew(store, measured, job):
    time_store(store)
    time_store(store, job)
    assert measured == ["fp32", "bf16"] * 2


def test_another_archive_is_timed_anew(store, measured, monkeypatch):
    time_store(store)
    rebuilt = {**timings.read_archive_definition(store / "tiny_image.mar"), "id": "another"}
    monkeypatch.setattr(timings, "read_archive_definition", lambda _: rebuilt)
    assert time_store(store)["models"]["tiny_image"]["archive_id"] == "another"
    assert measured == ["fp32", "bf16"] * 2


def test_other_versions_are_timed_anew(store, measured, monkeypatch):
    time_store(store)
    monkeypatch.setattr(timings, "read_versions", lambda: {"torch": "9"})
    time_store(store)
    assert measured == ["fp32", "bf16"] * 2


def test_only_what_changed_is_timed(store, measured):
    time_store(store)
    sizes = {"batch_sizes": {"fp32": 2, "bf16": 2}, "impossible": {}}
    time_store(store, make_job(models={"tiny_image": sizes}))
    assert measured == ["fp32", "bf16", "bf16"]


def test_models_that_are_not_asked_for_are_kept(store, measured, tiny_text_archive):
    shutil.copy(tiny_text_archive, store)
    time_store(store)
    assert sorted(time_store(store, make_job("tiny_text"))["models"]) == ["tiny_image", "tiny_text"]
    time_store(store)
    assert measured == ["fp32", "bf16"] * 2


def test_a_damaged_file_is_written_again(store, measured):
    time_store(store)
    (store / "run" / "timings.json").write_text("{")
    assert time_store(store)["models"]
    assert measured == ["fp32", "bf16"] * 2


def test_what_the_accuracy_gate_refused_is_not_timed(store, measured, monkeypatch):
    definition = timings.read_archive_definition(store / "tiny_image.mar")
    refused = {**definition, "refused": {"bf16": "agreement with FP32 is 90.0%"}}
    monkeypatch.setattr(timings, "read_archive_definition", lambda _: refused)
    precisions = time_store(store)["models"]["tiny_image"]["precisions"]
    assert measured == ["fp32"]
    assert precisions["bf16"] == {"problem": "refused at build: agreement with FP32 is 90.0%"}


def test_a_precision_that_no_build_was_asked_for_is_not_passed_over(store, measured):
    sizes = {"batch_sizes": {"fp32": 2, "bf16": 4, "int8": 4}, "impossible": {}}
    with pytest.raises(BuildError) as error:
        time_store(store, make_job(models={"tiny_image": sizes}))
    assert measured == []
    assert str(error.value) == (
        f"no build of {store / 'tiny_image.mar'} was asked for int8; "
        "do: make models MODELS=tiny_image PRECISION=auto"
    )


def answer_with(monkeypatch, failing: str, *, stderr: str, code: int = 1) -> list[str]:
    """Processes that time: one precision's fails, the other's answers."""
    timing = {"batches": 5, "lowest_s": 1.0, "median_s": 1.0, "highest_s": 1.0}
    asked: list[str] = []

    def run(command, *, env, **_):
        precision = json.loads(env["CPU_KIT_OPTIONS"])["tiny_image"]["precision"]
        asked.append(precision)
        if precision == failing:
            return timings.subprocess.CompletedProcess(command, code, "", stderr)
        return timings.subprocess.CompletedProcess(command, 0, f"IPEX says hello\n{json.dumps(timing)}\n", "")

    monkeypatch.setattr(timings.subprocess, "run", run)
    return asked


@pytest.mark.parametrize(
    ("stderr", "code", "cause"),
    [
        ("a warning\nerror: IPEX needs a CPU with AVX2\nbye\n", 1, "IPEX needs a CPU with AVX2"),
        ("ERROR! IPEX needs torch 2.8\n\n", 127, "ERROR! IPEX needs torch 2.8"),
        ("", -9, "it ended with code -9"),
    ],
)  # fmt: skip
def test_a_precision_that_cannot_be_loaded_is_no_candidate_and_tried_again(
    store, monkeypatch, capsys, stderr, code, cause
):
    asked = answer_with(monkeypatch, "bf16", stderr=stderr, code=code)
    entry = time_store(store)["models"]["tiny_image"]["precisions"]["bf16"]
    assert entry == {"problem": f"cannot be loaded here: {cause}"}
    assert f"  tiny_image bf16: cannot be loaded here: {cause}\n" in capsys.readouterr().out
    time_store(store)
    assert asked == ["fp32", "bf16", "bf16"]


def test_without_fp32_there_is_nothing_to_compare_with(store, monkeypatch):
    answer_with(monkeypatch, "fp32", stderr="error: the weights are damaged\n")
    with pytest.raises(BuildError) as error:
        time_store(store)
    assert str(error.value) == "tiny_image fp32 cannot be loaded here: the weights are damaged"


def test_a_missing_archive_says_how_to_build_it(tmp_path):
    with pytest.raises(BuildError) as error:
        time_store(tmp_path)
    path = tmp_path / "tiny_image.mar"
    assert str(error.value) == f"no archive to time: {path}; build it with: make models MODELS=tiny_image"


@pytest.mark.parametrize("text", ["", "[]", '{"cpu": 0}', '{"cpu": 0, "settings": {}, "models": {}, "x": 1}'])
def test_a_job_that_config_did_not_print(text):
    with pytest.raises(InputError, match=r"--job must be what `python -m config --timing-job` prints: "):
        timings.parse_job(text)


def test_a_cpu_that_is_not_ours():
    with pytest.raises(
        InputError, match=r"the job's cpu must be one of \[\d.*which this process may use: got 9999"
    ):
        timings.parse_job(make_job(cpu=9999))


def test_the_command_times_and_names_what_is_wrong(store, measured, capsys):
    where = ["--store", str(store), "--output", str(store / "t.json")]
    assert command.main(["time", "--job", make_job(), *where]) == 0
    assert json.loads((store / "t.json").read_text())["schema"] == timings.SCHEMA
    assert command.main(["time", "--job", "nothing", *where]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --job must be what `python -m config --timing-job` prints"
    )
