"""The command line: quick answers to wrong values, failures with the log's tail, pins that agree."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from server import processes
from setup import cli, commands, inputs, progress, requirements
from setup.__main__ import unsupported_python
from setup.errors import SetupError
from setup.facts import Facts

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
MACHINE = ROOT / "tests/config/machines/two-cores"


@pytest.mark.parametrize(
    ("version", "fits"), [((3, 9, 18), False), ((3, 10, 0), True), ((3, 13, 2), True), ((3, 14, 0), False)]
)
def test_only_a_python_with_wheels_of_ipex_is_taken(version: tuple[int, ...], fits: bool) -> None:
    sentence = unsupported_python(version, "/usr/bin/python3")
    assert (sentence is None) is fits
    if sentence:
        assert f"got {version[0]}.{version[1]} (/usr/bin/python3)" in sentence
        assert "PYTHON=python3.12" in sentence


def test_check_reports_and_fails(
    good: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "read_facts", lambda venv, pins: good)
    assert cli.main(["--check"]) == 0
    monkeypatch.setattr(cli, "read_facts", lambda venv, pins: replace(good, iomp=None))
    assert cli.main(["--check"]) == 1
    assert capsys.readouterr().err.startswith("setup: Intel OpenMP: must be libiomp5.so")


def test_a_hopeless_machine_installs_nothing(
    good: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "read_facts", lambda venv, pins: replace(good, cpu_flags=frozenset(), java=None))
    monkeypatch.setattr(cli.packages, "install_missing", lambda *_: pytest.fail("installed"))
    assert cli.main([]) == 1
    assert "avx2 not among them" in capsys.readouterr().err


def test_too_little_disk_is_found_before_torch_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cli.shutil, "disk_usage", lambda _: cli.shutil._ntuple_diskusage(10, 8, 2_000_000_000)
    )
    source = cli.torch_wheel.TorchSource(index="default", suffix="", reason="")
    with pytest.raises(SetupError, match=r"at least 12\.0 GB for this torch: got 2\.0 GB"):
        cli.check_free_space(tmp_path, source)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: inputs.check_switch("FOREGROUND", "maybe"), "FOREGROUND must be one of 0, 1: got maybe"),
    ],
)
def test_a_wrong_value_is_answered_with_those_allowed(call: Callable[[], None], text: str) -> None:
    with pytest.raises(SetupError, match=re.escape(text)):
        call()


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--precision", "int9", "PRECISION must be one of fp32, bf16, int8, auto: got int9"),
        ("--profile", "fast", "PROFILE must be one of throughput, latency"),
        ("--allocator", "mimalloc", "ALLOCATOR must be one of jemalloc, tcmalloc, system"),
        ("--openmp", "llvm", "OPENMP must be one of intel, gnu"),
        ("--workers", "two", "WORKERS must be a whole number: got two"),
        ("--cores-per-worker", "1.5", "CORES_PER_WORKER must be a whole number: got 1.5"),
        ("--port", "70000", "PORT must be 1 to"),
        ("--front", "nginx", "FRONT must be one of haproxy, none: got nginx"),
        ("--instances", "9", "INSTANCES must be 1 to 4: got 9"),
        ("--deadline-ms", "1s", "DEADLINE_MS must be a whole number: got 1s"),
        ("--tls-cert", "/nowhere.pem", "TLS_CERT must be a file that can be read: got /nowhere.pem"),
        ("--cores", "bert", "CORES must be lists of CPUs by model"),
    ],
)
def test_the_plans_values_are_judged_before_anything_is_installed(option: str, value: str, text: str) -> None:
    with pytest.raises(SetupError, match=re.escape(text)):
        inputs.check_plan([option, value, "--topology", str(MACHINE)])


def test_auto_is_a_value_and_refused_for_another_machine() -> None:
    inputs.check_plan(["--precision", "auto", "--timings", "nowhere.json", "--backend", "eager"])
    with pytest.raises(SetupError, match=r"PRECISION=auto goes by timings of this host, and TOPOLOGY="):
        inputs.check_plan(["--precision", "auto", "--topology", str(MACHINE)])
    inputs.check_plan(["--backend", "bert=auto"])
    with pytest.raises(SetupError, match=r"BACKEND=auto goes by timings of this host, and TOPOLOGY="):
        inputs.check_plan(["--backend", "auto", "--topology", str(MACHINE)])


def test_values_that_were_not_given_are_fine() -> None:
    inputs.check_plan(["--precision", "", "--workers", "", "--port", "", "--topology", str(MACHINE)])


def outside_of_make() -> dict[str, str]:
    """Below `make test` it would be a sub-make, which names the folders it enters on standard output."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *words, f"PYTHON={sys.executable}"]
    own = outside_of_make()
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("MODELS=brt", "error: MODELS must be one of bert, densenet121, resnet50: got brt"),
        ("PRECISION=int9", "setup: PRECISION must be one of fp32, bf16"),
        ("FOREGROUND=maybe", "setup: FOREGROUND must be one of 0, 1: got maybe"),
        ("WEIGHTS=nowhere.pt", "WEIGHTS"),
        ("WEIGHTS=resnet50=nowhere.pt", "WEIGHTS"),
        ("CALIBRATION=resnet50=/nowhere", "CALIBRATION"),
        ("EVAL=resnet50=/nowhere", "EVAL"),
    ],
)
def test_make_refuses_before_it_installs(tmp_path: Path, given: str, sentence: str) -> None:
    run = make("serve", given, f"RUN_DIR={tmp_path / 'run'}")
    assert run.returncode != 0
    assert sentence in run.stderr.splitlines()[0]
    assert run.stdout == ""
    assert not (tmp_path / "run").exists()


def test_a_dry_run_is_of_make_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "setup: DRY_RUN must be one of 0, 1: got maybe" in make("config", "DRY_RUN=maybe").stderr
    assert (
        "DRY_RUN is read by make config: got make serve; do: leave it out"
        in make("serve", "DRY_RUN=1").stderr
    )
    monkeypatch.setenv("DRY_RUN", "1")
    assert "DRY_RUN=1 is of `make config` alone: got make serve" in make("serve").stderr


def test_make_accepts_each_form_of_weights(tmp_path: Path) -> None:
    (tmp_path / "best.pth").touch()
    forms = ("", "auto", "pretrained", f"resnet50={tmp_path / 'best.pth'},bert=random", "bert=random")
    for form in forms:
        run = make(
            "inputs",
            f"WEIGHTS={form}",
            "PRECISION=auto",
            f"CALIBRATION=resnet50={tmp_path}",
            f"EVAL=resnet50={tmp_path}",
        )
        assert (run.returncode, run.stderr) == (0, ""), form


def test_make_models_hands_the_words_over_as_they_are() -> None:
    given = ["WEIGHTS=bert=random", "CALIBRATION=bert=/a b", "EVAL=bert=c.txt", "ALLOW_PICKLE=1"]
    run = make("-n", "models", "PRECISION=int8", *given)
    asked = "--precision='int8' --backend='' --weights='bert=random' "
    asked += "--calibration='bert=/a b' --eval='bert=c.txt' --allow-pickle='1'"
    assert f"-m models build --models='resnet50 bert' {asked}\n" in run.stdout
    assert "--weights='' " in make("-n", "models").stdout


@pytest.mark.parametrize(
    ("backend", "sets"),
    [("", []), ("ipex", []), ("openvino", ["openvino"]), ("bert=openvino,resnet50=ipex", ["openvino"])],
)
def test_what_an_engine_needs_is_installed_once_it_is_named(backend: str, sets: list[str]) -> None:
    assert cli.list_engine_sets(REQUIREMENTS, backend) == sets
    assert (
        f"-m setup --stack='' --torch-index='' --backend='{backend}'\n"
        in make("-n", "serve", f"BACKEND={backend}").stdout
    )


@pytest.mark.parametrize("precision", ["", "bf16", "auto"])
def test_a_server_is_built_for_the_precision_it_is_planned_in(precision: str, tmp_path: Path) -> None:
    steps = make("-n", "serve", f"PRECISION={precision}", f"RUN_DIR={tmp_path}").stdout.splitlines()
    for step in ("-m models check ", "-m models build ", "-m server start "):
        (line,) = [line for line in steps if step in line]
        assert f"--precision='{precision}' " in line


@pytest.mark.parametrize(
    ("command", "models"),
    [
        (("targets",), "resnet50 bert"),
        (("soak",), "resnet50 bert"),
        (("harm",), "resnet50 bert"),
        (("fuzz",), "resnet50 bert"),
        (("ladder", "MODEL=densenet121"), "densenet121"),
        (("profile", "MODEL=bert"), "bert"),
    ],
)
def test_what_is_measured_has_every_precision(command: tuple[str, ...], models: str) -> None:
    wanted = f"models build --models='{models}' --weights random --precision auto "
    assert wanted in make("-n", *command).stdout


def test_the_settings_ladder_has_inductors_library_too() -> None:
    adding = "--precision auto --store run/test-store --backend inductor --precision fp32"
    assert adding in make("-n", "ladder", "MODEL=bert").stdout
    assert adding not in make("-n", "ladder", "MODEL=bert", "RUNGS=engines").stdout


def test_data_without_a_precision_that_they_judge_are_refused(tmp_path: Path) -> None:
    run = make("inputs", f"CALIBRATION=resnet50={tmp_path}")
    assert "error: CALIBRATION and EVAL are of precisions beside fp32: got PRECISION=fp32" in run.stderr


def test_a_running_servers_plan_is_guarded_before_anything_is_written() -> None:
    steps = make("-n", "serve").stdout
    order = [
        steps.index(f"-m {step} ") for step in ("server check-plan", "models build", "config", "server start")
    ]
    assert order == sorted(order)


def test_auto_times_the_built_archives_and_plans_by_what_it_found(tmp_path: Path) -> None:
    """Timings of archives that do not exist, or a plan without timings, would be refused."""
    steps = make("-n", "serve", "PRECISION=auto", f"RUN_DIR={tmp_path}").stdout
    wanted = (
        "setup --stack='' --torch-index='' --backend=''\n",
        "server check-plan ",
        "models build ",
        "--timing-job",
        "models time ",
    )
    order = [steps.index(step) for step in wanted]
    assert order == sorted(order)
    planned = steps.index("-m config --models", steps.index("models time "))
    assert steps.index("server check-plan ", order[-1]) < planned < steps.index("-m server start ")
    assert f"--timings='{tmp_path}/timings.json'" in steps[planned:].splitlines()[0]
    assert f"--output='{tmp_path}/timings.json'\n" in steps
    assert steps.count("models build") == 1


def test_an_engine_is_installed_once_it_is_named_and_none_for_auto() -> None:
    for backend, sets in (
        ("openvino", ["openvino"]),
        ("bert=openvino,resnet50=auto", ["openvino"]),
        ("auto", []),
        ("bert=auto", []),
    ):
        steps = make("-n", "setup", f"BACKEND={backend}").stdout
        assert steps.endswith(f" -m setup --stack='' --torch-index='' --backend='{backend}'\n")
        assert cli.list_engine_sets(REQUIREMENTS, backend) == sets


def test_every_plan_for_this_machine_is_timed_and_a_dry_run_never() -> None:
    for words in (["serve"], ["config", "PRECISION=int8"], ["config", "PRECISION=auto"]):
        assert "models time" in make("-n", *words).stdout, words
    for words in (["config", "DRY_RUN=1"], ["config", "TOPOLOGY=x"]):
        assert "timing-job" not in make("-n", *words).stdout, words


def test_a_plan_for_another_machine_goes_by_no_timings_and_a_dry_run_by_those_there_are() -> None:
    assert "--timings" not in make("-n", "config", "TOPOLOGY=x").stdout
    assert "--timings='run/timings.json'" in make("-n", "config", "DRY_RUN=1").stdout


def test_a_tuned_plan_is_used_unless_it_is_switched_off() -> None:
    for words in ([], ["TUNED="], ["TUNED=1"]):
        assert "--tuned='run/tuned.json'" in make("-n", "config", *words).stdout, words
    assert "--tuned='run/tuned.json'" not in make("-n", "config", "TUNED=0").stdout
    assert make("inputs", "TUNED=no").stderr.startswith("setup: TUNED must be one of 0, 1: got no\n")


def test_a_dry_run_installs_nothing_where_an_environment_is() -> None:
    if not (ROOT / ".venv/setup.json").exists():
        pytest.skip("no environment that `make setup` has finished")
    set_up = re.compile(r"-m setup --stack='' --torch-index='' --backend=''$", re.MULTILINE)
    dry = make("-n", "config", "DRY_RUN=1").stdout
    assert not set_up.search(dry)
    assert "--dry-run" in dry.splitlines()[-1]
    assert set_up.search(make("-n", "config", "DRY_RUN=0").stdout)


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("targets", "TARGET=x"),
        ("soak", "MINUTES=0"),
        ("ladder", "MODEL=x"),
        ("ladder", "RUNGS=x"),
        ("harm", "EXPERIMENT=x"),
        ("fuzz", "BODIES=1"),
    ],
)
def test_long_measurements_judge_their_values_before_archives_are_built(command: str, given: str) -> None:
    steps = make("-n", command, given).stdout.splitlines()
    measured, checked = steps[-1], [step.replace(" --check", "") for step in steps].index(steps[-1])
    assert f"-m loadtest {command} " in measured
    assert any("models build " in step for step in steps[checked:])
    assert not any("models build " in step for step in steps[:checked])


def test_make_clean_leaves_a_persons_files(tmp_path: Path) -> None:
    """In a copy: `make clean` removes the built archives too."""
    copy = tmp_path / "kit"
    copy.mkdir()
    shutil.copy(ROOT / "Makefile", copy)
    for name in ("server", "config", "handlers"):
        shutil.copytree(ROOT / name, copy / name)
    run, store = tmp_path / "run", copy / "model-store"
    for folder in (run / "logs", store):
        folder.mkdir(parents=True)
    for file in (
        run / ".cpu-kit",
        run / "plan.json",
        run / "mine.txt",
        store / "bert.mar",
        store / "bert.mar.part",
        store / "own",
    ):
        file.touch()
    command = ["make", "clean", f"RUN_DIR={run}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [file.name for file in run.iterdir()] == ["mine.txt"]
    assert [file.name for file in store.iterdir()] == ["own"]


def test_make_help_names_every_public_target() -> None:
    run = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    needed = (
        "help",
        "setup",
        "models",
        "config",
        "serve",
        "status",
        "verify",
        "stop",
        "test",
        "lint",
        "clean",
    )
    for target in needed:
        assert re.search(rf"^  make {target} +\S", run.stdout, re.MULTILINE), target


def test_a_failed_command_shows_its_end(tmp_path: Path) -> None:
    script = (
        "print('first\\n' * 40); print('ERROR: No matching distribution found for x'); raise SystemExit(3)"
    )
    log = tmp_path / "logs/setup.log"
    with pytest.raises(SetupError) as caught:
        commands.run_logged([sys.executable, "-c", script], log)
    text = str(caught.value)
    assert "failed with exit code 3" in text
    assert "  | ERROR: No matching distribution found for x\n" in text
    assert text.count("first") <= commands.TAIL_LINES
    assert f"log: {log}" in text
    assert "check the index pip uses" in text


def test_the_tail_is_of_this_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    commands.run_logged([sys.executable, "-c", "print('earlier')"], log)
    with pytest.raises(SetupError) as caught:
        commands.run_logged([sys.executable, "-c", "raise SystemExit('later')"], log)
    assert "later" in str(caught.value)
    assert "earlier" not in str(caught.value)


def test_no_credentials_stay_in_the_log(tmp_path: Path) -> None:
    """pip hides them in its messages, but not in a traceback."""
    log, address = tmp_path / "log", "https://name:secret@index.example/x"
    commands.run_logged([sys.executable, "-c", "print('earlier')"], log)
    script = "import os; raise SystemExit(os.environ['ADDRESS'])"
    with pytest.raises(SetupError) as caught:
        commands.run_logged([sys.executable, "-c", script], log, extra={"ADDRESS": address})
    for text in (str(caught.value), log.read_text()):
        assert "secret" not in text
        assert "https://***@index.example/x" in text
    assert "earlier" in log.read_text()


def test_the_callers_shell_does_not_lead_pip_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_CERT", "/etc/ca.pem")
    environment = commands.own_environment()
    assert "PYTHONPATH" not in environment
    assert "PIP_USER" not in environment
    assert environment["PIP_CERT"] == "/etc/ca.pem"


def test_each_step_is_one_line() -> None:
    out = io.StringIO()
    with progress.step("package lists", out):
        pass
    with pytest.raises(KeyError), progress.step("the other packages", out):
        raise KeyError
    first, second = out.getvalue().splitlines()
    assert re.fullmatch(r"  package lists \.+    0 s ok", first)
    assert re.fullmatch(r"  the other packages \.+    0 s failed", second)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1500, "2 kB"), (7_123_456_789, "7.1 GB"), (2e6, "2 MB")]
)
def test_a_size_is_said_as_a_person_says_it(count: int, text: str) -> None:
    assert progress.human_size(count) == text


def test_a_long_step_keeps_to_its_line() -> None:
    out = io.StringIO()
    with progress.step("x" * 200, out):
        pass
    assert len(out.getvalue()) <= 80


SETS = [
    (folder, name)
    for folder in (requirements.find_stack(REQUIREMENTS, stack) for stack in requirements.STACKS)
    for name in requirements.read_sets(folder)
]


@pytest.mark.parametrize(("folder", "name"), SETS)
def test_every_exact_pin_is_in_the_lock(folder: Path, name: str) -> None:
    lock = (folder / requirements.CONSTRAINTS).read_text().lower()
    text = (folder / f"{name}.txt").read_text().lower().replace("_", "-")
    for pin in re.findall(r"^(\S+==\S+)$", text, re.MULTILINE):
        assert re.search(rf"^{re.escape(pin)}\s", lock, re.MULTILINE), f"{pin}: run `make lock`"


@pytest.mark.parametrize(("folder", "name"), SETS)
def test_every_set_is_locked_with_hashes(folder: Path, name: str) -> None:
    """But torch and what comes with it, whose source is a choice."""
    locked = (folder / requirements.HASHES / f"{name}.txt").read_text()
    pins = re.findall(
        r"^(\S+)==(\S+)[^\n]*\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", locked, re.MULTILINE
    )
    assert len(pins) == len(re.findall(r"^\S+==", locked, re.MULTILINE))
    constraints = (folder / requirements.CONSTRAINTS).read_text()
    assert [pin for pin in pins if f"\n{pin[0]}=={pin[1]} " not in f"\n{constraints}"] == []
    names = {pin[0] for pin in pins}
    asked = re.findall(r"^([A-Za-z][\w.-]*)", (folder / f"{name}.txt").read_text(), re.MULTILINE)
    assert {one.lower().replace("_", "-") for one in asked} - names <= {"torch", "torchvision"}
    assert not {one for one in names if one.startswith(("torchvision", "triton", "nvidia-", "cuda-"))}
    assert "torch" not in names


@pytest.mark.parametrize(("folder", "name"), SETS)
def test_each_requirement_says_why(folder: Path, name: str) -> None:
    blocks = (folder / f"{name}.txt").read_text().split("\n\n")
    assert all(block.lstrip().startswith("#") for block in blocks if block.strip())


@pytest.mark.parametrize("stack", requirements.STACKS)
def test_the_pins_are_what_an_environment_is_held_to(stack: str) -> None:
    pins = requirements.read_pins(requirements.find_stack(REQUIREMENTS, stack))
    assert {"torch", "torchvision", "torchserve", "transformers"} <= set(pins)
    assert all(re.fullmatch(r"\d[\w.]*", version) for version in pins.values())


def test_requirements_must_pin_torch(tmp_path: Path) -> None:
    (tmp_path / "serve.txt").write_text("torch==2.8.0\ntorchvision>=0.23\n")
    with pytest.raises(SetupError, match="must pin torchvision with `==`"):
        requirements.read_pins(tmp_path)


def test_the_requirements_hold_no_addresses() -> None:
    for path in REQUIREMENTS.rglob("*.txt"):
        assert "://" not in path.read_text(), path.name


def test_a_stack_has_its_own_environment_and_requirements() -> None:
    plain, current = (cli.parse_arguments(["--stack", stack]) for stack in ("", "current"))
    assert (plain.stack, plain.venv.name) == ("ipex", ".venv")
    assert (current.stack, current.venv.name) == ("current", ".venv-current")
    steps = make("-n", "config", "STACK=current", "DRY_RUN=1").stdout
    assert ".venv-current/bin/python -m config " in steps
    assert not re.search(r"^\.venv/", steps, re.MULTILINE)


def test_an_unknown_stack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--stack", "newest", "--check"]) == 1
    assert capsys.readouterr().err == "setup: STACK must be one of ipex, current: got newest\n"


def test_the_digest_ignores_comments(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("a==1\n")
    (tmp_path / "serve.txt").write_text("a\n")
    first = requirements.digest(tmp_path, "serve")
    (tmp_path / "serve.txt").write_text("# why\n\na  # here\n")
    assert requirements.digest(tmp_path, "serve") == first
    (tmp_path / "constraints.txt").write_text("a==2\n")
    assert requirements.digest(tmp_path, "serve") != first


@pytest.mark.parametrize("place", ["/home/a b/kit", "/srv/x:y/kit", "/srv/tab\tkit"])
def test_a_checkout_whose_path_the_loader_would_split_is_refused(place: str) -> None:
    with pytest.raises(SetupError, match=re.escape(f"got {place}; move or clone it elsewhere")):
        inputs.check_place(Path(place))


def test_a_checkout_with_a_plain_path_is_fine() -> None:
    inputs.check_place(Path("/srv/kit-1.0/übung"))


def test_a_run_directory_of_others_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "environment").write_text("PATH=/usr/bin")
    run = make("inputs", f"RUN_DIR={tmp_path}")  # the first step of every target that writes there
    assert run.stderr.startswith("setup: RUN_DIR must be a new or empty folder, or one of the kit's")
    assert (tmp_path / "environment").read_text() == "PATH=/usr/bin"
    assert len(list(tmp_path.iterdir())) == 1


def test_taken_ports_are_found_before_anything_is_installed_or_built() -> None:
    steps = make("-n", "serve").stdout
    order = [
        steps.index(step)
        for step in (
            "--inputs",
            "server check-ports",
            "-m setup --stack='' --torch-index='' --backend",
            "models build ",
        )
    ]
    assert order == sorted(order)


def test_what_a_reload_cannot_change_is_refused_before_another_stack_is_installed() -> None:
    steps = make("-n", "reload", "STACK=current").stdout
    words = ("--inputs", "server check-reload --stack='current'", "--torch-index='' --backend", "build ")
    order = [steps.index(step) for step in words]
    assert order == sorted(order)


def test_make_starts_only_the_plan_it_asked_for() -> None:
    start = make("-n", "serve", "PRECISION=int8", "RUN_DIR=x").stdout.splitlines()[-1]
    assert "-m server start --run-dir='x'  -- --models='resnet50 bert' --precision='int8'" in start


def test_every_command_of_make_prints_in_any_locale(tmp_path: Path) -> None:
    """`→` in a Latin-1 locale ended `make serve` in a traceback, with the plan already written."""
    show = "show: ; @$(PYTHON) -c 'import sys; print(sys.flags.utf8_mode, sys.stdout.encoding)'"
    command = ["make", "-f", str(ROOT / "Makefile"), f"--eval={show}", "show", f"PYTHON={sys.executable}"]
    # A UTF-8 locale, because in one that is not installed Python is in that mode by itself.
    latin = {**outside_of_make(), "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    run = subprocess.run(command, cwd=tmp_path, env=latin, capture_output=True, text=True, check=True)
    assert run.stdout.split()[-2:] == ["1", "utf-8"]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server runs on the environment."""
    java = processes.Process(pid=42, start_ticks=1, parent_pid=1, command=(processes.JAVA_MAIN,))
    monkeypatch.setattr(processes, "find_users_of", lambda _: [java])
    monkeypatch.setattr(processes, "name_run", lambda process: f"{process.role} {process.pid} of RUN_DIR=/x")


def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: cli.environment.Verdict) -> None:
    (tmp_path / ".venv").mkdir(exist_ok=True)
    monkeypatch.setattr(cli.environment, "judge", lambda *_: verdict)
    for name in ("create", "repair", "install_set"):
        monkeypatch.setattr(cli.environment, name, lambda *_: None)
    monkeypatch.setattr(cli, "install_serving", lambda _options, _venv, _python, stamp: stamp)
    options = cli.parse_arguments(["--venv", str(tmp_path / ".venv")])
    cli.complete_environment(options, facts_of(tmp_path))


def facts_of(folder: Path) -> Facts:
    return cli.read_facts(folder / ".venv", {})


@pytest.mark.parametrize("rebuild", [True, False])
def test_an_environment_does_not_change_under_a_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: None, rebuild: bool
) -> None:
    verdict = cli.environment.Verdict(
        rebuild=rebuild, install=("serve",), reason="requirements changed: serve"
    )
    expected = (
        ".venv must not change under a running server (requirements changed: serve): got TorchServe 42 of "
        "RUN_DIR=/x\n  do: stop it (make stop RUN_DIR=…), then run this again"
    )
    with pytest.raises(SetupError, match=re.escape(expected)):
        complete(tmp_path, monkeypatch, verdict)


def test_an_environment_that_other_servers_use_is_not_removed(
    tmp_path: Path, running: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make distclean` stops the server of one RUN_DIR; several may share the environment."""
    (tmp_path / ".venv").mkdir()
    assert cli.main(["--unused", "--venv", str(tmp_path / ".venv")]) == 1
    assert "(it was to be removed): got TorchServe 42 of RUN_DIR=/x" in capsys.readouterr().err
    steps = make("-n", "distclean").stdout
    assert steps.index("setup --stack='' --torch-index='' --unused") < steps.index("rm -rf -- .venv")


def test_a_link_to_another_checkouts_environment_is_replaced_and_that_one_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "setup.json").write_text("{}")
    (tmp_path / ".venv").symlink_to(other)
    monkeypatch.setattr(cli.environment, "write_stamp", lambda *_: None)
    complete(tmp_path, monkeypatch, cli.environment.Verdict(rebuild=True, install=("serve",), reason="moved"))
    assert (other / "setup.json").exists()
    assert not (tmp_path / ".venv").is_symlink()


def test_tools_beside_the_serving_packages_may_come_while_a_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: None
) -> None:
    complete(tmp_path, monkeypatch, cli.environment.Verdict(rebuild=False, install=("loadtest",), reason=""))
    assert (tmp_path / ".venv/setup.json").exists()
