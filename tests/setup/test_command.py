"""What a command of the Makefile installs, checks and runs, in which order, and where packages come from."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from handlers.backends.catalogue import SETS
from setup import command, doctor
from setup.command import PINS
from tests.setup.test_doctor import put

LOCKED = [f"{name}/{file}" for name in SETS for file in ("serve", "captum", "loadtest", "dev", "audit")]
BEGUN = ["virtual environment", "uv"]
NEW = [*BEGUN, *(FILLED := ["packages", "torch", "Java class"])]
CHECK, OWN, OTHER = "config.settings check", ".venv/bin/python -m", ".venv-current/bin/python -m"


class Kit:
    """A checkout where nothing is installed but written down."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.known = {"arguments": ["PORT=9"], "set": "ipex", "torch_index": "", "extras": [], "builds": 0}
        self.known["program"] = []
        self.folder, self.venv = folder, folder / ".venv"
        self.pins, self.stamp = folder / "requirements", self.venv / "setup.json"
        shutil.copytree(PINS, self.pins)
        values = {
            "VENVS": {"ipex": self.venv, "current": folder / ".venv-current"}, "PINS": self.pins,
            "PROC": folder / "proc", "fcntl": SimpleNamespace(flock=lambda *_: None, LOCK_EX=0),
            "call": self.call, "run": self.run, "install": self.install,
            "choose_torch_index": lambda given, _: (given or "default", "so"),
        }  # fmt: skip
        for name, value in values.items():
            monkeypatch.setattr(command, name, value)
        monkeypatch.setattr(command.os, "execvp", self.execute)
        for name in ("check_machine", "complete_machine", "find_missing", "find_lack"):
            monkeypatch.setattr(doctor, name, lambda *_: {})

    def install(self, name: str, *_: object, **__: object) -> None:
        self.done.append(name.partition("==")[0])

    def run(self, name: str, words: str) -> None:
        self.done.append(name)
        if name in BEGUN:
            venv = Path(words.split()[-1] if name == BEGUN[0] else words.partition("/bin/")[0])
            for file in ("bin/python", "lib/python3.11/site-packages/ts/frontend/model-server.jar"):
                (venv / file).parent.mkdir(parents=True, exist_ok=True)
                (venv / file).touch(mode=0o755)

    def call(self, venv: Path, *words: str) -> str:
        self.done.append(" ".join(words[:2]))
        return json.dumps(self.known)

    def execute(self, _: str, words: list[str]) -> None:
        raise SystemExit(" ".join(words).replace(f"{self.folder}/", ""))

    def main(self, words: str) -> str | int | None:
        """The program that takes over, or the exit code or text."""
        self.done.clear()
        try:
            command.main(words.split())
        except SystemExit as end:
            return end.code
        return None

    def set_up(self, *extras: str, index: str = "") -> list[str]:
        self.done.clear()
        command.complete(self.venv, "ipex", [*extras], index)
        return self.done

    def show(self, pid: int, *words: str, run: str = "") -> None:
        """A process in /proc; its environment is not to be read without `run`, as that of another user."""
        (folder := self.folder / "proc" / str(pid)).mkdir(parents=True)
        (folder / "cmdline").write_text("\0".join(words) + "\0")
        if run:
            (folder / "environ").write_text(f"HOME=/\0CPU_KIT_RUN={run}\0")


@pytest.fixture
def kit(tmp_path, monkeypatch):
    return Kit(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("before", "words", "known", "done", "end"),
    [
        ("", "serve PORT=9", {"builds": True, "program": ["server", "serve"]},
         [*BEGUN, CHECK, "models check", *FILLED], f"{OWN} server serve PORT=9"),
        ("complete", "reload", {"set": "current", "program": ["server", "reload"], "builds": True},
         [CHECK, "models check", "server check-reload", *NEW], f"{OTHER} server reload PORT=9"),
        ("complete", "serve", {"extras": ["captum"], "program": ["server", "serve"]},
         [CHECK, "packages for captum"], f"{OWN} server serve PORT=9"),
        ("complete", "models", {"set": "current", "program": ["models", "build"]},
         [CHECK, *NEW], f"{OTHER} models build PORT=9"),
        ("complete", "audit", {"extras": ["audit"]},
         [CHECK, "packages for audit"], "sh requirements/audit.sh .venv/bin/python"),
        ("complete", "dev", {"extras": ["dev"]}, [CHECK, "packages for dev"], None),
        ("complete", "test-current", {"extras": ["dev"]}, [CHECK, *NEW, "packages for dev"], None),
        ("begun", "plan", {}, [CHECK], "make plan installs nothing: got no .venv; do: make setup"),
        ("complete", "plan", {"program": ["server", "plan"]}, [CHECK], f"{OWN} server plan PORT=9"),
        ("", "image", {"program": ["docker"], "set": "current"}, [*BEGUN, CHECK], f"{OWN} docker PORT=9"),
        ("", "install current .venv-image x", {}, NEW, None),
        ("", "distclean", {}, [], None),
        *(("", name, {}, [], code) for name, code in (("doctor", False), ("status", True), ("verify", True),
                                                      ("stop", True), ("clean", False), ("help", False))),
        ("begun", "stop RUN_DIR=x", {}, [], f"{OWN} server stop RUN_DIR=x"),
        ("begun", "help all", {}, [], f"{OWN} config.settings help all"),
    ],
)  # fmt: skip
def test_a_command_checks_and_installs_what_it_needs_in_this_order_and_ends_so(
    kit, monkeypatch, before, words, known, done, end
):
    monkeypatch.chdir(kit.folder)
    if before:
        command.begin(kit.venv, "x")
    if before == "complete":
        kit.set_up()
    kit.known |= known
    assert (kit.main(words), kit.done) == (end, done)


def test_what_is_missing_is_said(kit, monkeypatch, capsys):
    kit.main("status")
    monkeypatch.setattr(doctor, "find_missing", lambda: {"curl": "no curl"})
    assert kit.main("doctor") == 1
    said = ["status: no server: got no environment (.venv); do: make setup", "curl is missing: got no curl"]
    assert capsys.readouterr().out.splitlines() == [*said, "  do: make setup"]


def test_a_value_that_is_rejected_ends_it_with_its_code(tmp_path):
    put(tmp_path / "bin", "python", "echo $*; exit $4")
    assert command.call(tmp_path, "config.settings", "check", "0") == "-m config.settings check 0\n"
    with pytest.raises(SystemExit, match="2"):
        command.call(tmp_path, "config.settings", "check", "2")


def test_a_second_set_up_waits_and_the_program_does_not_hold_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    probe, codes = ["flock", "--nonblock", f"{tmp_path}", "true"], []
    monkeypatch.setattr(doctor, "check_machine", lambda: None)
    monkeypatch.setattr(command, "prepare", lambda *_: codes.append(subprocess.call(probe)) or ["x"])
    monkeypatch.setattr(command.os, "execvp", lambda *_: codes.append(subprocess.call(probe)))
    command.main(["serve"])
    assert codes == [1, 0]


def test_what_is_complete_stays_and_purposes_are_added_once_and_kept(kit, monkeypatch):
    assert kit.set_up() == NEW
    assert kit.set_up() == []
    assert kit.set_up("dev") == ["packages for dev"]
    assert kit.set_up("dev") == []
    (kit.pins / "ipex/dev.txt").write_text("dev==2")
    monkeypatch.setattr(doctor, "find_lack", lambda need: "2.4 (/usr/sbin/haproxy)")
    assert kit.set_up() == ["packages for haproxy", "packages for dev"]
    assert kit.set_up(index="default") == []
    assert kit.set_up(index="https://name:secret@index.example/x")[:-2] == NEW
    assert "secret" not in kit.stamp.read_text()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kit: kit.stamp.unlink(),
        lambda kit: kit.stamp.write_text("{"),
        lambda kit: kit.stamp.write_text('{"location": "of another format"}'),
        lambda kit: kit.stamp.write_text(kit.stamp.read_text().replace(str(kit.venv), "/elsewhere")),
        lambda kit: kit.stamp.write_text(kit.stamp.read_text().replace(f'"{command.PYTHON}"', '"3.9"')),
        lambda kit: (kit.venv / "bin/python").unlink(),
        lambda kit: (kit.pins / "ipex/serve.txt").write_text("other==1"),
        lambda kit: (kit.pins / "ipex/serve.in").write_text("torch==2.8.0\ntorchvision==0.1\n"),
    ],
)
def test_what_is_half_made_or_of_other_requirements_is_made_again(kit, spoil):
    kit.set_up()
    spoil(kit)
    assert kit.set_up() == NEW
    assert kit.set_up() == []


def test_it_does_not_change_under_a_running_server(kit):
    """Several may share it: `make distclean` stops that of one RUN_DIR. Tools come beside their packages."""
    kit.set_up()
    kit.show(41, f"{kit.venv}/bin/python", "-m", "pytest")
    kit.show(43, "/elsewhere/bin/python", "/x/model_service_worker.py")
    (kit.pins / "ipex/serve.txt").write_text("other==1")
    assert kit.set_up() == NEW
    kit.show(42, "java", "org.pytorch.serve.ModelServer", "--python", f"{kit.venv}/bin/python", run="/x")
    assert kit.set_up("dev") == ["packages for dev"]
    (kit.pins / "ipex/serve.txt").write_text("another==1")
    with pytest.raises(SystemExit, match=r"^\.venv must not change .* \(serve was .* 42 of RUN_DIR=/x\n"):
        kit.set_up()
    assert kit.done == []
    (kit.folder / "proc/42/cmdline").unlink()
    kit.show(44, f"{kit.venv}/bin/python", "/x/ts/model_service_worker.py")
    assert "(it was to be removed): got process 44\n" in str(kit.main("distclean"))


def test_what_a_link_leads_to_stays_whole(kit):
    (kit.folder / "other").mkdir()
    kit.venv.symlink_to(kit.folder / "other")
    command.begin(kit.venv, "x")
    assert [*(kit.folder / "other").iterdir()] == []
    assert not kit.venv.is_symlink()


PAGE = '<a href="torch-2.8.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl">torch-2.8.0+cpu-cp311…</a>'


@pytest.mark.parametrize(
    ("asked", "answer", "version", "index", "reason"),
    [
        ("", PAGE, "3.11", command.CPU_INDEX, "the CPU-only"),
        ("", PAGE, "3.12", "default", "has no torch-2.8.0 for this Python"),
        ("", OSError("unreachable"), "3.11", "default", "cannot be reached (unreachable)"),
        *((one, PAGE, "3.11", one, "TORCH_INDEX")
          for one in ("default", "https://x.example/whl", "file:///srv/whl", "http://127.0.0.1:1/x")),
        *((one, PAGE, "3.11", "", "")
          for one in ("http://x.example/whl", "ftp://x.example", "cpu", "http://127.0.0.1.example/")),
    ],
)  # fmt: skip
def test_torch_comes_from_the_cpu_only_wheels_index_and_from_none_that_anybody_can_answer_for(
    monkeypatch, asked, answer, version, index, reason
):
    def open_page(address: str, timeout: float) -> io.BytesIO:
        if isinstance(answer, OSError):
            raise answer
        return io.BytesIO(answer.encode())

    monkeypatch.setattr(command.urllib.request, "urlopen", open_page)
    monkeypatch.setattr(command, "PYTHON", version)
    with nullcontext() if index else pytest.raises(SystemExit, match=f"TORCH_INDEX must be .*: got {asked}"):
        chosen, why = command.choose_torch_index(asked, "torch-2.8.0")
        assert (chosen, reason in why) == (index, True)


def test_uv_takes_packages_from_where_pip_would_or_from_one_index_alone(tmp_path, monkeypatch):
    """And addresses are in no command line."""
    listed = r"""printf "%s\n" ":env:.index-url='https://me:secret@one.example/'" "global.cert='/ca.pem'" \
        "global.extra-index-url='\\nfile:///srv/a\\nfile:///srv/b'" "global.find-links='/w /x'" \
        "global.index-url='https://other.example'" """
    put(tmp_path / "bin", "python", listed)
    for name in command.UV_SETTINGS.values():
        monkeypatch.delenv(name, raising=False)
    calls: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(command, "run", lambda _, *given: calls.append(given))
    command.install("a", tmp_path, "a==1")
    monkeypatch.setenv("UV_INDEX", "https://more.example")
    command.install("torch", tmp_path, "torch==1", index="https://name:secret@torch.example")
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "SSL_CERT_FILE")
    assert [[variables[name] for name in names] for _, variables in calls] == [
        ["https://me:secret@one.example/", "file:///srv/a file:///srv/b", "/w,/x", "/ca.pem"],
        ["https://name:secret@torch.example", "", "", "/ca.pem"],
    ]
    assert ["--no-deps" in words for words, _ in calls] == [False, True]
    assert "secret" not in f"{calls[0][0]} {calls[1][0]}"


@pytest.mark.parametrize("name", [*LOCKED, "first", "haproxy"])
def test_every_set_is_locked_with_hashes_and_no_addresses(name):
    """But torch and what comes with it, whose source is a choice."""
    text = (PINS / f"{name}.txt").read_text()
    assert "://" not in text
    pins = re.findall(r"^(\S+)==\S+.*\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE)
    assert pins
    assert pins == re.findall(r"^(\w\S*)==", text, re.MULTILINE)
    assert not [one for one in pins if re.match(r"torch$|torchvision|triton|nvidia-|cuda-", one)]
    source = PINS / (f"{name}.in" if "serve" in name else f"{Path(name).name}.in")
    asked = re.findall(r"^([A-Za-z][\w.-]*==[^\s;]+)", source.read_text(), re.MULTILINE)
    missing = [one for one in asked if one.lower().replace("_", "-") not in text]
    assert [one for one in missing if not re.match("torch(vision)?==", one)] == [], "make lock"


@pytest.mark.parametrize("name", SETS)
def test_settings_are_read_with_the_same_packages_before_all_others(name):
    files = PINS / "first.txt", PINS / name / "serve.txt"
    first, serve = ({*re.findall(r"(?m)^\w\S*==.*", file.read_text())} for file in files)
    assert {one.partition("==")[0] for one in first - serve} == {"uv"}
    assert {"pydantic-settings", "tomli"} <= {one.partition("==")[0] for one in first}
