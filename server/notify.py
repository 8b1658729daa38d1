"""Tells systemd how the server is (sd_notify(3)): ready, what it does, that it still lives, that it ends.

Who is told is in the environment; where nothing is, nothing is told. A lost message is no reason to end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping

SOCKET = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
HANDED_ON = (SOCKET, WATCHDOG)
"""What the process that systemd starts hands on to its child, the supervisor, and to nobody else.
WATCHDOG_PID is the parent's, so it is not looked at: NotifyAccess=all takes the child's word."""
UP = ("ready", "degraded")
RELOADING = "reloading"
STOPPING = "stopping"
EVERY_S = 1.0
LONGEST_STATUS = 500
"""Characters: a line for `systemctl status`, not a log."""


class Notifier:
    """Remembers what was told, so that each thing is told once; what could not be sent is told again."""

    def __init__(
        self, address: str = "", watchdog_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._every_s = min(EVERY_S, watchdog_s / 2)
        self._now = now
        self._phase = ""
        self._status = ""
        self._lived = float("-inf")

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> Notifier:
        """Takes the variables out of the environment: no worker may speak for the server by chance."""
        taken = os.environ if environment is None else environment
        address, microseconds = taken.pop(SOCKET, ""), taken.pop(WATCHDOG, "")
        return cls(address, int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0)

    def tell(self, phase: str, message: str = "") -> None:
        """Call it at each turn of the loop: that is what the watchdog listens for."""
        if not self._address:
            return
        state, status, now = _find_state(phase, self._phase), _describe(phase, message), self._now()
        lives = bool(self._every_s) and now - self._lived >= self._every_s
        lines = [
            *([state] if state else []),
            *([f"STATUS={status}"] if status != self._status else []),
            *(["WATCHDOG=1"] if lives else []),
        ]
        if lines and not send(self._address, "\n".join(lines)):
            return
        self._phase, self._status = (phase if state else self._phase), status
        self._lived = now if lives else self._lived


def _find_state(phase: str, told: str) -> str:
    """What systemd has to learn; "" where it knows. Degraded is up: it serves, and is never "ready" twice."""
    if phase in UP:
        return "" if told in UP else "READY=1"
    if phase == RELOADING and told != RELOADING:
        return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
    return "STOPPING=1" if phase == STOPPING != told else ""


def _describe(phase: str, message: str) -> str:
    """On one line: a second one would be another message to systemd."""
    return " ".join(f"{phase}: {message}".split() if message else [phase])[:LONGEST_STATUS]


def send(address: str, text: str) -> bool:
    """One datagram; False where it could not be sent at once. `@name` is an abstract socket (unix(7))."""
    if not address.startswith(("/", "@")):
        return False
    name = f"\0{address[1:]}" if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto(text.encode("utf-8", errors="replace"), name)
    except (OSError, ValueError):
        return False
    return True
