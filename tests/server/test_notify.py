"""What systemd is told, once each, over both kinds of sockets; and that nothing of it can harm the server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.notify import LONGEST_STATUS, Notifier, send


class Clock:
    """Time as the test says."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


class Manager:
    """systemd's end of the socket."""

    def __init__(self, name: str) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listening.setblocking(False)
        self.listening.bind(name)

    def take(self) -> list[list[str]]:
        """The messages since the last look, as lines."""
        messages = []
        while True:
            try:
                messages.append(self.listening.recv(65536).decode().split("\n"))
            except BlockingIOError:
                return messages


@pytest.fixture
def listen() -> Iterator[Callable[[str], Manager]]:
    started: list[Manager] = []

    def start(name: str) -> Manager:
        started.append(Manager(name))
        return started[-1]

    yield start
    for manager in started:
        manager.listening.close()


@pytest.fixture
def manager(listen, tmp_path, monkeypatch) -> Manager:
    monkeypatch.chdir(tmp_path)  # a socket's name is short, a test's folder may not be
    return listen("notify")


def notifier(watchdog_s: float = 30.0, clock: Clock | None = None) -> Notifier:
    return Notifier(str(Path("notify").absolute()), watchdog_s, clock or Clock())


def test_each_thing_is_told_once(manager):
    told, clock = [], Clock()
    one = notifier(clock=clock)
    for phase, message in (
        ("starting", ""), ("starting", ""), ("ready", ""), ("ready", ""), ("degraded", "a1: no worker"),
        ("ready", ""), ("reloading", "b1"), ("reloading", "b2"), ("ready", ""),
        ("stopping", ""), ("stopping", ""), ("ended", ""),
    ):  # fmt: skip
        one.tell(phase, message)
        told.append([line for lines in manager.take() for line in lines if "MONOTONIC" not in line])
    assert told == [
        ["STATUS=starting", "WATCHDOG=1"], [], ["READY=1", "STATUS=ready"], [],
        ["STATUS=degraded: a1: no worker"], ["STATUS=ready"],
        ["RELOADING=1", "STATUS=reloading: b1"], ["STATUS=reloading: b2"], ["READY=1", "STATUS=ready"],
        ["STOPPING=1", "STATUS=stopping"], [], ["STATUS=ended"],
    ]  # fmt: skip


def test_a_reload_says_when_it_began(manager):
    notifier().tell("reloading")
    assert any(line.removeprefix("MONOTONIC_USEC=").isdecimal() for line in manager.take()[0])


def test_the_watchdog_hears_at_most_once_a_second_and_only_from_a_turn(manager):
    clock = Clock()
    one = notifier(clock=clock)
    for step in range(7):
        clock.at = 100.0 + step * 0.5
        one.tell("ready")
    assert sum(message.count("WATCHDOG=1") for message in manager.take()) == 4
    clock.at = 200.0
    assert manager.take() == []


def test_a_short_watchdog_is_fed_twice_in_its_time(manager):
    clock = Clock()
    one = notifier(1.0, clock)
    for step in range(4):
        clock.at = 100.0 + step * 0.5
        one.tell("ready")
    assert sum(message.count("WATCHDOG=1") for message in manager.take()) == 4


def test_without_a_watchdog_there_is_nothing_to_feed(manager):
    notifier(0.0).tell("ready")
    assert manager.take() == [["READY=1", "STATUS=ready"]]


def test_an_abstract_socket_is_reached(listen):
    manager = listen("\0cpu-kit-test-of-notify")
    Notifier("@cpu-kit-test-of-notify").tell("ready")
    assert manager.take() == [["READY=1", "STATUS=ready"]]


def test_a_message_cannot_speak_for_itself(manager):
    notifier(0.0).tell("degraded", "a line\nMAINPID=1\r\nFDSTORE=1 " + "x" * LONGEST_STATUS)
    (lines,) = manager.take()
    assert [line.partition("=")[0] for line in lines] == ["READY", "STATUS"]
    assert len(lines[1]) == len("STATUS=") + LONGEST_STATUS


def test_what_was_not_heard_is_told_again(listen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = notifier(0.0)
    one.tell("ready")
    manager = listen("notify")
    one.tell("ready")
    assert manager.take() == [["READY=1", "STATUS=ready"]]


def test_a_manager_that_does_not_read_is_not_waited_for(manager):
    address = str(Path("notify").absolute())
    sent = [send(address, "WATCHDOG=1") for _ in range(2000)]  # more than a socket's queue holds
    assert sent[0]
    assert not sent[-1]


@pytest.mark.parametrize(
    "address", ["", "relative", "vsock:2:1234", "/no/such/socket", "/a\0b", "/" + "x" * 200]
)
def test_an_address_that_cannot_be_told_anything_harms_nobody(address):
    Notifier(address, 30.0).tell("ready", "\udcff")


def test_the_environment_says_whom_and_loses_it(manager):
    environment = {
        "NOTIFY_SOCKET": str(Path("notify").absolute()),
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": "1",
        "HOME": "/",
    }
    Notifier.from_environment(environment).tell("ready")
    assert manager.take() == [["READY=1", "STATUS=ready", "WATCHDOG=1"]]
    assert environment == {"WATCHDOG_PID": "1", "HOME": "/"}


@pytest.mark.parametrize("usec", ["", "soon", "-1"])
def test_an_odd_watchdog_is_none(manager, usec):
    environment = {"NOTIFY_SOCKET": str(Path("notify").absolute()), "WATCHDOG_USEC": usec}
    Notifier.from_environment(environment).tell("ready")
    assert manager.take() == [["READY=1", "STATUS=ready"]]
