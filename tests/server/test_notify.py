"""What systemd is told over its socket; that nothing of it can harm the server; and its unit."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.cli import COMMANDS
from server.command import USAGE_ERROR, read_call
from server.notify import LONGEST_STATUS, Notifier

UNIT = Path(__file__).parents[2] / "deploy/cpu-kit.service"


@pytest.fixture(params=["notify", "@cpu-kit-test-of-notify"])
def manager(request, tmp_path, monkeypatch) -> Iterator[socket.socket]:
    """systemd's end of the socket, by path and abstract."""
    monkeypatch.chdir(tmp_path)  # a socket's name is short, a test's folder may not be
    monkeypatch.setenv("NOTIFY_SOCKET", request.param)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.setblocking(False)
        listening.bind(request.param.replace("@", "\0"))
        yield listening


def take(manager: socket.socket) -> list[str]:
    return manager.recv(65536).decode().split("\n")


def test_each_state_is_told_once_and_each_turn_that_it_lives(manager):
    one, told = Notifier(), []
    for phase, message in (
        ("starting", ""), ("ready", ""), ("ready", ""), ("degraded", "a1: no worker"), ("reloading", "b1"),
        ("ready", ""), ("stopping", ""), ("ended", ""),
    ):  # fmt: skip
        one.tell(phase, message)
        *lines, alive = take(manager)
        assert alive == "WATCHDOG=1"
        told.append(lines)
    assert told == [
        ["STATUS=starting"], ["READY=1", "STATUS=ready"], [], ["STATUS=degraded: a1: no worker"],
        ["RELOADING=1", "STATUS=reloading: b1"], ["READY=1", "STATUS=ready"],
        ["STOPPING=1", "STATUS=stopping"], ["STATUS=ended"],
    ]  # fmt: skip


def test_a_message_cannot_speak_for_itself(manager):
    Notifier().tell("degraded", "a line\nMAINPID=1\r\nFDSTORE=1 " + "x" * LONGEST_STATUS)
    ready, status, alive = take(manager)
    assert (ready, alive, len(status)) == ("READY=1", "WATCHDOG=1", len("STATUS=") + LONGEST_STATUS)


def test_what_was_not_heard_is_told_again_and_a_full_socket_is_not_waited_for(manager):
    one = Notifier()
    for turn in range(2000):  # more than a socket's queue holds
        one.tell("starting", str(turn))
    one.tell("ready")
    while True:
        try:
            manager.recv(65536)
        except BlockingIOError:
            break
    one.tell("ready")
    assert "READY=1" in take(manager)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "/no/such/socket", "/" + "x" * 200])
def test_an_address_that_cannot_be_told_anything_harms_nobody(address, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    Notifier().tell("ready", "\udcff")


def test_the_units_command_is_one_of_todays(tmp_path, monkeypatch):
    """Its folder is the one that may be written; what its words alone make fail is not started again."""
    monkeypatch.chdir(tmp_path)  # no kit.toml
    unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    python, *module, command = (words := shlex.split(unit["ExecStart"]))[:4]
    assert (python, module) == (f"{unit['WorkingDirectory']}/.venv/bin/python", ["-m", "server"])
    assert command in COMMANDS
    settings = read_call(command, words[4:]).settings
    assert settings.foreground
    assert f"{unit['WorkingDirectory']}/{settings.run_dir}" == unit["ReadWritePaths"]
    assert unit["RestartPreventExitStatus"] == str(USAGE_ERROR)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong(tmp_path):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch(mode=0o755)
    file = tmp_path / UNIT.name
    file.write_text(
        UNIT.read_text().replace("/opt/cpu-kit", str(tmp_path)).replace("User=cpu-kit", "User=daemon")
    )
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
