"""Timing archives: a real one of small archives, what is kept of it, when it is taken again, failures."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handlers.backends.catalogue import IPEX
from handlers.definition import Variant
from models import __main__ as command
from models import slots, timing, timings
from models.errors import BuildError, InputError
from models.handlers import load_handler
from models.timing import TEXTS, draw_lengths, time_batches, write_bodies

FP32, BF16 = "eager fp32", "eager bf16"
"""An import of IPEX takes seconds, and nothing here is about it."""
CPU = min(os.sched_getaffinity(0))
SETTINGS = {
    "cpu_model": "this one",
    "slots": [[CPU], [CPU]],  # two that share it: any machine has it
    "threads": 1,
    "off": [],
    "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
}


def make_model_job(**changes: Any) -> dict[str, Any]:
    """Of one model."""
    return {"variant": FP32, "batches": [1, 4], **changes}


def make_job(name: str = "tiny_image", model: dict[str, Any] | None = None, **changes: Any) -> str:
    """As config prints it."""
    models = {name: model or make_model_job()}
    return json.dumps({"settings": SETTINGS, "models": models, "seconds": 0.2, "bound": 60.0, **changes})


@pytest.fixture
def store(tmp_path: Path, tiny_image_archive: Path) -> Path:
    shutil.copy(tiny_image_archive, tmp_path)
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants that were timed, by a stand-in that takes no time."""
    asked: list[str] = []

    def measure(self: timings.Trial, staging: Path) -> dict[str, Any]:
        asked.append(self._variant)
        timed = {size: slots.Taken(seconds=[0.5, 0.25 * size, 9.0], busy=1.0) for size in self._batches}
        facts = {"version": timings.read_version(self._variant)}
        return timings.make_entry(timed, facts)

    monkeypatch.setattr(timings.Trial, "_measure_unpacked", measure)
    return asked


def make_variant_job(variant: str) -> str:
    return make_job(model=make_model_job(variant=variant))


def time_store(store: Path, job: str | None = None) -> dict[str, Any]:
    output = store / "run" / "timings.json"
    job_ = timings.parse_job(job or make_job())
    timings.time_models(job_, store=store, output=output, workspaces=store / "build")
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    # For a second, but one at least.
    ("cost", "batches"),
    [(0.25, 4), (0.5, 2), (0.75, 2), (1.0, 1), (1.5, 1), (9.0, 1)],
)
def test_batches_are_timed_for_a_while_and_at_least_a_few(cost, batches):
    now = 0.0

    def answer():
        nonlocal now
        now += cost

    assert time_batches(answer, 1.0, clock=lambda: now) == [cost] * batches


def test_the_first_batch_of_a_size_does_not_count_and_later_rounds_have_none(monkeypatch):
    asked = []

    class Fake:
        def __init__(self, staging):
            pass

        def answer(self, size):
            asked.append(size)

    monkeypatch.setattr(timing, "Batches", Fake)
    out = io.StringIO()
    timing.serve(Path("x"), iter(["4 0", "1 0", "4 0"]), out)
    assert asked == [4, 4, 1, 1, 4]
    _, *answers = out.getvalue().splitlines()
    assert [len(json.loads(line)["seconds"]) for line in answers] == [1, 1, 1]


@pytest.mark.parametrize("variant", [FP32, BF16])
def test_a_real_timing(store, variant):
    found = time_store(store, make_variant_job(variant))["models"]["tiny_image"]
    assert len(found["archive_id"]) == 64
    entry = found["variants"][variant]
    assert list(entry["service"]) == ["1", "4"]
    for service in entry["service"].values():
        assert service["batches"] >= 2  # one in each place
        assert 0 < service["lowest_s"] <= service["median_s"] <= service["p99_s"] <= service["highest_s"]
        assert 0 < service["busy"] <= 1
    best = entry["service"][str(entry["batch_size"])]
    assert entry["samples_per_second"] == pytest.approx(entry["batch_size"] / best["median_s"], rel=0.01)
    assert ("% top-1 agreement with FP32 on " in entry.get("gate", "")) == (variant == BF16)
    assert list((store / "build").iterdir()) == []


def test_a_real_timing_of_texts_and_of_a_precision_that_does_not_load(tmp_path, tiny_text_archive):
    """In BF16 a random model this small fails its self-check, which every load makes."""
    shutil.copy(tiny_text_archive, tmp_path)
    for variant in (FP32, BF16):
        job = make_job("tiny_text", make_model_job(variant=variant))
        variants = time_store(tmp_path, job)["models"]["tiny_text"]["variants"]
    assert variants[FP32]["samples_per_second"] > 0
    assert variants[BF16]["problem"].startswith("cannot be loaded here: the optimised model differs")


def test_texts_have_the_lengths_of_the_load_tests(tmp_path, tiny_text_archive):
    lengths = draw_lengths(TEXTS)
    assert sum(lengths) / TEXTS == pytest.approx(32, abs=1)
    assert sorted(lengths)[TEXTS // 2] == 23
    assert lengths != sorted(lengths)
    with zipfile.ZipFile(tiny_text_archive) as archive:
        archive.extractall(tmp_path)
    bodies = write_bodies(load_handler(tmp_path), (tmp_path / "example.txt").read_bytes())
    assert len(bodies) == TEXTS
    assert len({body.count(b" ") for body in bodies}) > TEXTS / 10


def test_images_are_all_the_smoke_request(tmp_path, tiny_image_archive):
    with zipfile.ZipFile(tiny_image_archive) as archive:
        archive.extractall(tmp_path)
    smoke = (tmp_path / "example.jpg").read_bytes()
    assert write_bodies(load_handler(tmp_path), smoke) == [smoke]


def test_a_process_that_times_is_a_worker_in_small(store, monkeypatch):
    """The CPUs of its place, the job's environment, and nothing of the shell's tuning."""
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    monkeypatch.setenv("LD_PRELOAD", "")
    trial = timings.Trial(
        packed=SimpleNamespace(definition=SimpleNamespace(name="m")),
        job=timings.parse_job(make_job("m")),
        workspaces=store,
    )
    environment = trial._make_environment("eager bf16")
    asked = {"backend": "eager", "precision": "bf16", "threads": 1, "batch": 4, "off": []}
    assert json.loads(environment["CPU_KIT_OPTIONS"]) == {"m": asked}
    assert environment["OMP_NUM_THREADS"] == "1"
    assert not {"OMP_DYNAMIC", "LD_PRELOAD"} & set(environment)


TELL = """
import json, os, sys
print("IPEX says hello\\nready", flush=True)
for line in sys.stdin:
    size, seconds = line.split()
    seconds = [int(size), float(seconds), *os.sched_getaffinity(0)]
    print(json.dumps({"seconds": seconds, "busy": 0.5}), flush=True)
"""


def test_each_place_has_a_process_on_its_cpus(tmp_path):
    command = [sys.executable, "-c", TELL]
    with slots.start_slots(command, slots=[[CPU], [CPU]], environment=os.environ, cwd=tmp_path) as running:
        assert running.time(4, 0.5) == slots.Taken(seconds=[4, 0.5, CPU] * 2, busy=0.5)
        assert running.time(1, 2).seconds == [1, 2, CPU] * 2
        processes = [slot.process for slot in running.slots]
    assert all(process.returncode is not None for process in processes)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import sys; sys.exit('a warning\\nerror: IPEX needs AVX2\\nbye')", "IPEX needs AVX2"),
        ("import os, sys; print('no torch 2.8', file=sys.stderr); os._exit(127)", "no torch 2.8"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with code -9"),
        ("print('ready')", "it ended with code 0"),
    ],
)  # fmt: skip
def test_a_process_that_ends_says_why(tmp_path, code, cause):
    command = [sys.executable, "-c", code]
    with (
        pytest.raises(slots.SlotError) as error,
        slots.start_slots(command, slots=[[CPU]], environment=os.environ, cwd=tmp_path) as running,
    ):
        running.time(1, 1)
    assert str(error.value) == cause


def test_what_was_timed_is_not_timed_again(store, measured):
    first = time_store(store)
    assert time_store(store) == first
    assert measured == [FP32]


def with_settings(**changes: Any) -> str:
    return make_job(settings={**SETTINGS, **changes})


@pytest.mark.parametrize(
    "settings",
    [
        {"cpu_model": "another"},
        {"off": ["freeze"]},
        {"environment": {"OMP_NUM_THREADS": "1"}},
        {"slots": [[CPU]]},
    ],
)
def test_other_settings_are_timed_again(store, measured, settings):
    time_store(store)
    time_store(store, with_settings(**settings))
    assert measured == [FP32] * 2


def rebuild(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt = replace(timings.read_built(store / "tiny_image.mar"), sums=b"")
    monkeypatch.setattr(timings, "read_built", lambda _: rebuilt)


def upgrade(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "read_versions", lambda: {"torch": "9"})


def damage(store: Path, _: pytest.MonkeyPatch) -> None:
    (store / "run" / "timings.json").write_text("{")


@pytest.mark.parametrize("change", [rebuild, upgrade, damage])
def test_what_is_not_as_it_was_is_timed_again(store, measured, monkeypatch, change):
    time_store(store)
    change(store, monkeypatch)
    assert time_store(store)["models"]["tiny_image"]["variants"].keys() == {FP32}
    assert measured == [FP32] * 2


@pytest.mark.parametrize(
    ("changes", "again"),
    [({"batches": [1]}, []), ({"batches": [1, 4, 8]}, [FP32]), ({"variant": BF16}, [BF16])],
)
def test_only_what_changed_is_timed(store, measured, changes, again):
    time_store(store)
    entries = time_store(store, make_job(model=make_model_job(**changes)))["models"]["tiny_image"]["variants"]
    assert measured == [FP32, *again]
    assert {*entries} == {FP32, *again}


def test_what_another_backend_took_is_kept_until_its_version_is_another(store, measured, monkeypatch):
    monkeypatch.setattr(timings, "version", lambda _: "1")
    for variant in ("ipex fp32", FP32, "ipex fp32"):
        time_store(store, make_variant_job(variant))
    assert measured == ["ipex fp32", FP32]
    monkeypatch.setattr(timings, "version", lambda name: "2" if name == IPEX else "1")
    for variant in (FP32, "ipex fp32"):
        time_store(store, make_variant_job(variant))
    assert measured == ["ipex fp32", FP32, "ipex fp32"]


def test_models_that_are_not_asked_for_are_kept(store, measured, tiny_text_archive):
    shutil.copy(tiny_text_archive, store)
    time_store(store)
    assert sorted(time_store(store, make_job("tiny_text"))["models"]) == ["tiny_image", "tiny_text"]
    time_store(store)
    assert measured == [FP32] * 2


@pytest.mark.parametrize(
    ("became", "problem"),
    [
        ({"rejected": "agreement is 90.0%"}, "rejected at build: agreement is 90.0%"),
        ({"not_built": "no compiler"}, "not built: no compiler"),
    ],
)
def test_what_no_archive_holds_is_not_timed(store, measured, monkeypatch, became, problem):
    packed = timings.read_built(store / "tiny_image.mar")
    variants = {BF16: Variant(data="synthetic", **became)}
    definition = packed.definition.model_copy(update={"variants": variants})
    monkeypatch.setattr(timings, "read_built", lambda _: replace(packed, definition=definition))
    variants = time_store(store, make_variant_job(BF16))["models"]["tiny_image"]["variants"]
    assert (measured, variants[BF16]) == ([], {"problem": problem})


def test_what_no_build_was_asked_for_says_how_to_build_it(store, measured):
    with pytest.raises(BuildError, match="do: make models MODELS=tiny_image BACKEND=ipex PRECISION=int8"):
        time_store(store, make_variant_job("ipex int8"))
    assert measured == []


def fail_to_load(monkeypatch) -> None:
    @contextlib.contextmanager
    def start(command, **_):
        raise timings.SlotError("the weights are damaged")
        yield

    monkeypatch.setattr(timings, "start_slots", start)


def test_a_precision_that_cannot_be_loaded_is_said_and_tried_again(store, monkeypatch):
    with monkeypatch.context() as context:
        fail_to_load(context)
        entry = time_store(store, make_variant_job(BF16))["models"]["tiny_image"]["variants"][BF16]
    assert entry == {"problem": "cannot be loaded here: the weights are damaged"}
    entry = time_store(store, make_variant_job(BF16))["models"]["tiny_image"]["variants"][BF16]
    assert entry["samples_per_second"] > 0


def test_fp32_that_cannot_be_loaded_is_an_error(store, monkeypatch):
    fail_to_load(monkeypatch)
    with pytest.raises(BuildError, match="tiny_image eager fp32 cannot be loaded here: the weights"):
        time_store(store)


def test_a_missing_archive_says_how_to_build_it(tmp_path):
    with pytest.raises(BuildError, match=r"no archive to time: .*make models MODELS=tiny_image"):
        time_store(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"settings": {}}', make_job(x=1), with_settings(slots=[[CPU], [9999]])]
)
def test_a_job_that_config_did_not_print_or_not_for_our_cpus(text):
    with pytest.raises(InputError):
        timings.parse_job(text)


def test_the_command_times_and_names_what_is_wrong(store, measured, capsys):
    where = [f"MODEL_STORE={store}", "--output", str(store / "t.json")]
    assert command.main(["time", "--job", make_job(), *where]) == 0
    assert json.loads((store / "t.json").read_text())["schema"] == timings.SCHEMA
    assert command.main(["time", "--job", "nothing", *where]) == 2
    assert capsys.readouterr().err.startswith("error: --job must be ")


def time_turns(taking: dict[int, float], bound: float) -> tuple[list[int], dict[int, slots.Taken]]:
    """Which sizes were timed, one after the other, where a batch takes so long."""
    asked, now = [], 0.0

    class Running:
        def time(self, size, seconds):
            nonlocal now
            now += max(seconds, taking[size]) + (taking[size] if size not in asked else 0.0)
            asked.append(size)
            return slots.Taken(seconds=[taking[size]], busy=1 - len(asked) / 100)

    return asked, timings.time_in_turns(Running(), [16, 1, 4], 3.0, bound, clock=lambda: now)


def test_sizes_take_turns_so_that_drift_hits_all_alike():
    asked, timed = time_turns({1: 0.1, 4: 0.4, 16: 1.0}, 60.0)
    assert asked == [1, 4, 16] * 3
    assert timed[4] == slots.Taken(seconds=[0.4] * 3, busy=pytest.approx(0.95))


@pytest.mark.parametrize(
    ("each_s", "sizes"),
    [(0.08, [1, 4, 16, 1, 4, 16, 1]), (0.5, [1, 4, 1, 4, 1]), (6.0, [1])],
)
def test_of_a_slow_model_the_largest_sizes_are_switched_off(each_s, sizes):
    asked, timed = time_turns({size: each_s * size for size in (1, 4, 16)}, 10.0)
    assert asked == sizes
    assert {*timed} == {*sizes}
