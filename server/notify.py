"""Tells systemd how the server is (sd_notify(3)): ready, what it does, that it still lives, that it ends."""

from __future__ import annotations

import os
import socket

SOCKET = "NOTIFY_SOCKET"
"""What the process that systemd starts hands on to its child, the supervisor, and to nobody else."""
STATES = {"ready": "READY=1", "degraded": "READY=1", "reloading": "RELOADING=1", "stopping": "STOPPING=1"}
LONGEST_STATUS = 500  # characters: a line for `systemctl status`, not a log


class Notifier:
    """Says a state when it changes, and with each call that the caller's loop still turns."""

    def __init__(self) -> None:
        # Out of the environment: no worker may speak for the server by chance.
        self._address = os.environ.pop(SOCKET, "")
        self._sent: list[str] = []

    def tell(self, phase: str, message: str = "") -> None:
        """Call it at each turn of the loop: that is what the watchdog listens for."""
        # On one line: a second one would be another message to systemd.
        status = " ".join(f"{phase}: {message}".split() if message else [phase])[:LONGEST_STATUS]
        lines = [*([STATES[phase]] if phase in STATES else []), f"STATUS={status}"]
        new = [line for line in lines if line not in self._sent]
        if self._address and send(self._address, "\n".join([*new, "WATCHDOG=1"])):
            self._sent = lines


def send(address: str, text: str) -> bool:
    """One datagram; False where it could not be sent at once. `@name` is an abstract socket (unix(7))."""
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto(text.encode("utf-8", errors="replace"), name)
    except (OSError, ValueError):
        return False
    return True
