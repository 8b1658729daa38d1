"""What happens to workers, and what clients see of it; answers that change places."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
import time

from loadtest.experiments.harm import bodies
from loadtest.experiments.harm.client import HOST, Outcome, send_all
from loadtest.experiments.harm.row import Seen
from loadtest.experiments.harm.victim import Victim
from server.processes import send_signal


def halt_worker(victim: Victim) -> Seen:
    """A worker that hangs for half a minute."""
    with victim.halted(victim.find_worker_of("resnet50")):
        outcomes = send_all([victim.canary("resnet50")] * 8, victim.port, clients=4, seconds=30.0)
    return Seen(outcomes=outcomes, notes=(NEXT,))


NEXT = "what clients see is not promised yet: there are no deadlines in front of TorchServe"


def kill_worker(victim: Victim) -> Seen:
    """A worker that dies with requests under way."""
    worker = victim.find_worker_of("resnet50")
    killer = threading.Timer(1.0, send_signal, (worker, signal.SIGKILL))
    killer.start()
    outcomes = send_all([victim.canary("resnet50")] * 200, victim.port, clients=16, seconds=30.0)
    killer.join()
    back = victim.wait_for_workers()
    faults = ("the worker did not come back within a minute",) if back is None else ()
    return Seen(outcomes=outcomes, notes=(NEXT, f"back {back} s after the last answer"), faults=faults)


def pipeline(victim: Victim) -> Seen:
    """A slow picture and a bad text in one write: answers must come in the order of the requests."""
    slow = victim.ask("resnet50", bodies.make_plain_png(4800, mode="RGBA"), bodies.PNG)
    quick = victim.ask("bert", b"{", bodies.JSON)
    received = b""
    began = time.monotonic()
    with socket.create_connection((HOST, victim.port), timeout=30.0) as link, contextlib.suppress(OSError):
        link.sendall(b"".join(one.render_head() + one.body for one in (slow, quick)))
        while len(find_statuses(received)) < 2 and (piece := link.recv(1 << 16)):
            received += piece
    statuses = find_statuses(received)
    took = time.monotonic() - began
    note = f"answers to a slow picture and a broken text came as {statuses}: a front must not pipeline"
    return Seen(outcomes=[Outcome(status=status, seconds=took) for status in statuses], notes=(note,))


def find_statuses(received: bytes) -> list[int]:
    """Of several answers in a row."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", received)]
