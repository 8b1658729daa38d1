"""The environment: when it stays, when it is completed or made anew, and where packages come from."""

from __future__ import annotations

import io
import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from handlers.backends.catalogue import SETS
from setup import command, doctor, environment
from setup.doctor import SetupError
from setup.environment import REQUIREMENTS, STAMP

PURPOSES = ("loadtest", "dev", "audit")
LOCKED = [*(f"{name}/{purpose}" for name in SETS for purpose in ("serve", *PURPOSES)), "uv", "haproxy"]


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A small requirements/, and a set-up that installs nothing and remembers what it would."""
    folder = tmp_path / "requirements/ipex"
    folder.mkdir(parents=True)
    (folder / "serve.in").write_text("# why\ntorch==2.8.0\ntorchvision==0.23.0\n")
    for file in ("ipex/serve", "ipex/dev", "uv", "haproxy"):
        (folder.parent / f"{file}.txt").write_text(f"{file}==1 --hash=sha256:0\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", folder.parent)
    monkeypatch.setattr(doctor, "find_missing", lambda *_: [])
    return Kit(tmp_path, monkeypatch)


def name(argument: str) -> str:
    """Of a file, or of a pinned package."""
    return Path(argument).stem if "/" in argument else argument.partition("==")[0]


NEW = ["created", "serve", "torchvision"]
"""What makes an environment anew."""


class Kit:
    def __init__(self, folder: Path, monkeypatch) -> None:
        self.venv, self.requirements, self.did = folder / ".venv", folder / "requirements", []
        monkeypatch.setattr(environment, "begin", self.begin)
        monkeypatch.setattr(environment, "compile_java", lambda *_: None)
        monkeypatch.setattr(environment, "choose_torch_index", lambda given, _: (given or "default", "so"))
        monkeypatch.setattr(environment, "install", lambda *given, **_: self.did.append(name(given[-1])))

    def begin(self, venv: Path) -> None:
        self.did.append("created")
        (venv / "bin").mkdir(parents=True, exist_ok=True)
        (venv / "bin/python").touch(mode=0o755)
        environment.write_stamp(venv, {**environment.identify(venv), "purposes": {}})

    def change_stamp(self, **values: str) -> None:
        stamp = json.loads((self.venv / STAMP).read_text())
        (self.venv / STAMP).write_text(json.dumps({**stamp, **values}))

    def set_up(self, *purposes: str, index: str = "") -> list[str]:
        self.did.clear()
        environment.complete_environment(self.venv, "ipex", purposes, index)
        return self.did


def test_what_is_complete_stays(kit):
    assert kit.set_up() == NEW
    assert kit.set_up() == []


def test_an_environment_that_was_only_begun_is_filled_and_not_made_anew(kit):
    kit.begin(kit.venv)
    assert not environment.is_complete(kit.venv)
    assert kit.set_up() == NEW[1:]
    assert environment.is_complete(kit.venv)


def test_settings_are_read_with_pinned_packages_before_all_others():
    for package_set in SETS:
        text = (REQUIREMENTS / package_set / "serve.txt").read_text()
        found = environment.FIRST.findall(text)
        names = {one.partition("==")[0] for one in found}
        assert {"pydantic", "pydantic-core", "pydantic-settings", "python-dotenv", "tomli"} <= names
        assert all("--hash=sha256:" in one for one in found)


def test_a_purpose_is_added_once_and_kept(kit):
    kit.set_up()
    assert kit.set_up("dev") == ["dev"]
    assert kit.set_up("dev") == []
    (kit.requirements / "ipex/dev.txt").write_text("dev==2")
    assert kit.set_up() == ["dev"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kit: (kit.venv / STAMP).unlink(),
        lambda kit: (kit.venv / STAMP).write_text("{"),
        lambda kit: (kit.venv / STAMP).write_text('{"location": "of another format"}'),
        lambda kit: (kit.venv / "bin/python").unlink(),
        lambda kit: (kit.requirements / "ipex/serve.txt").write_text("other==1"),
        lambda kit: (kit.requirements / "ipex/serve.in").write_text("torch==2.9.0\ntorchvision==0.23.0\n"),
        lambda kit: kit.change_stamp(location="/elsewhere"),
        lambda kit: kit.change_stamp(python="3.9"),
    ],
)
def test_what_is_half_made_or_of_other_requirements_is_made_anew(kit, spoil):
    kit.set_up()
    spoil(kit)
    assert kit.set_up() == NEW
    assert kit.set_up() == []


def test_another_torch_index_is_another_environment(kit):
    kit.set_up()
    assert kit.set_up(index="default") == []
    assert kit.set_up(index="https://name:secret@index.example/x") == NEW
    assert "secret" not in (kit.venv / STAMP).read_text()


@pytest.fixture
def users(kit, monkeypatch):
    """Processes by what they are given, as /proc shows them."""
    proc = kit.venv.parent / "proc"
    monkeypatch.setattr(environment, "PROC", proc)

    def show(pid: int, *command: str, run: str = "") -> None:
        (folder := proc / str(pid)).mkdir(parents=True)
        (folder / "cmdline").write_text("\0".join(command) + "\0")
        (folder / "environ").write_text(f"HOME=/\0CPU_KIT_RUN={run}\0" if run else "HOME=/\0")

    return show


def test_it_does_not_change_under_a_running_server(kit, users):
    kit.set_up()
    users(41, f"{kit.venv}/bin/python", "-m", "pytest")
    kit.change_stamp(serve="other")
    assert kit.set_up() == NEW
    users(42, "java", "org.pytorch.serve.ModelServer", "--python", f"{kit.venv}/bin/python", run="/x")
    users(43, "/elsewhere/bin/python", "/x/model_service_worker.py")
    assert kit.set_up("dev") == ["dev"]  # tools beside the serving packages
    (kit.requirements / "ipex/serve.txt").write_text("other==1")
    with pytest.raises(
        SetupError,
        match=r"\.venv must not change under a running server \(serve was .*process 42 of RUN_DIR=/x\n",
    ):
        kit.set_up()


def test_an_environment_that_other_servers_use_is_not_removed(kit, users, monkeypatch, capsys):
    """`make distclean` stops the server of one RUN_DIR; several may share the environment."""
    monkeypatch.setattr(command, "VENVS", {"ipex": kit.venv})
    monkeypatch.setattr(doctor, "check_machine", lambda: None)
    assert command.main(["distclean"]) == 0
    users(42, f"{kit.venv}/bin/python", "/x/ts/model_service_worker.py")
    assert command.main(["distclean"]) == 1
    assert "(it was to be removed): got process 42" in capsys.readouterr().err


def test_what_a_link_leads_to_stays_whole(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / ".venv").symlink_to(tmp_path / "other")

    def stop(*_: object) -> None:
        raise SetupError("here")

    monkeypatch.setattr(doctor, "run", stop)
    with pytest.raises(SetupError, match="here"):
        environment.begin(tmp_path / ".venv")
    assert (tmp_path / "other").is_dir()
    assert not (tmp_path / ".venv").is_symlink()


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        *((one, True) for one in ("", "default", "https://x.example/whl", "file:///srv/whl", "http://127.0.0.1:1/x")),
        *((one, False) for one in ("http://x.example/whl", "ftp://x.example", "cpu", "http://127.0.0.1.example/")),
    ],
)  # fmt: skip
def test_torch_comes_from_nowhere_that_anybody_can_answer_for(asked, fits):
    with nullcontext() if fits else pytest.raises(SetupError, match="TORCH_INDEX must be"):
        environment.check_torch_index(asked)


PAGE = '<a href="torch-2.8.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl">torch-2.8.0+cpu-cp311…</a>'


@pytest.mark.parametrize(
    ("answer", "version", "index", "reason"),
    [
        (PAGE, (3, 11), environment.CPU_INDEX, "the CPU-only"),
        (PAGE, (3, 12), "default", "has no torch-2.8.0 for this Python"),
        (OSError("unreachable"), (3, 11), "default", "cannot be reached (unreachable)"),
    ],
)
def test_the_cpu_only_wheels_are_taken_where_their_index_has_them(
    monkeypatch, answer, version, index, reason
):
    def open_page(address: str, timeout: float) -> io.BytesIO:
        if isinstance(answer, OSError):
            raise answer
        return io.BytesIO(answer.encode())

    monkeypatch.setattr(environment.urllib.request, "urlopen", open_page)
    monkeypatch.setattr(environment.sys, "version_info", version)
    chosen, why = environment.choose_torch_index("", "torch-2.8.0")
    assert chosen == index
    assert reason in why
    assert environment.choose_torch_index("default", "torch-2.8.0")[0] == "default"


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """An environment whose pip has settings, and what uv is given."""
    (tmp_path / "bin").mkdir()
    listed = r"""printf "%s\n" ":env:.index-url='https://me:secret@one.example/simple'" \
        "global.cert='/ca.pem'" \
        "global.extra-index-url='\\nfile:///srv/a\\nfile:///srv/b'" "global.find-links='/w /x'" \
        "global.index-url='https://other.example'" """
    (tmp_path / "bin/python").write_text(f"#!/bin/sh\n{listed}\n")
    (tmp_path / "bin/python").chmod(0o755)
    for name in environment.UV_SETTINGS.values():
        monkeypatch.delenv(name, raising=False)
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(doctor, "run", lambda _, command, variables: calls.append((command, variables)))
    return tmp_path, calls


def test_uv_takes_packages_from_where_pip_would(uv, monkeypatch):
    venv, calls = uv
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment.install("a", venv, "a==1")
    command, variables = calls[0]
    assert variables["UV_DEFAULT_INDEX"] == "https://me:secret@one.example/simple"
    assert variables["UV_INDEX"] == "file:///srv/a file:///srv/b"
    assert variables["UV_FIND_LINKS"] == "/w,/x"
    assert variables["SSL_CERT_FILE"] == "/ca.pem"
    assert "PYTHONPATH" not in variables
    assert "secret" not in " ".join(command)


def test_another_index_is_asked_alone_and_in_no_command_line(uv, monkeypatch):
    venv, calls = uv
    monkeypatch.setenv("UV_INDEX", "https://more.example")
    environment.install("torch", venv, "torch==1", index="https://name:secret@torch.example")
    command, variables = calls[0]
    assert "--no-deps" in command
    assert "secret" not in " ".join(command)
    asked = (variables["UV_DEFAULT_INDEX"], variables["UV_INDEX"], variables["UV_FIND_LINKS"])
    assert asked == ("https://name:secret@torch.example", "", "")


@pytest.mark.parametrize("name", LOCKED)
def test_every_set_is_locked_with_hashes_and_no_addresses(name):
    """But torch and what comes with it, whose source is a choice."""
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert "://" not in text
    pins = re.findall(r"^(\S+)==\S+.*\\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE)
    assert pins
    assert pins == re.findall(r"^(\w\S*)==", text, re.MULTILINE)
    assert not [one for one in pins if re.match(r"torch$|torchvision|triton|nvidia-|cuda-", one)]
    source = REQUIREMENTS / (f"{name}.in" if "serve" in name else f"{Path(name).name}.in")
    asked = re.findall(r"^([A-Za-z][\w.-]*==[^\s;]+)", source.read_text(), re.MULTILINE)
    missing = [one for one in asked if one.lower().replace("_", "-") not in text]
    assert [one for one in missing if not re.match("torch(vision)?==", one)] == [], "make lock"
