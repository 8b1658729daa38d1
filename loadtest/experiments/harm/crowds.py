"""Those who only take places: bodies and headers that never end, the longest texts; who is served beside?"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable

from loadtest.experiments.harm import bodies
from loadtest.experiments.harm.client import HOST, Outcome, Request, hold_open, send_all
from loadtest.experiments.harm.row import Seen
from loadtest.experiments.harm.victim import CANARY_SECONDS, MODELS, Victim

LONG_SECONDS = 150.0
"""Longer than TorchServe's default response time-out of 120 s, so that its end is seen."""
HELD = 60
"""Connections left open."""


def hold_bodies(*, with_token: bool) -> Callable[[Victim], Seen]:
    """Bodies that never become whole, and whether anybody else is served meanwhile."""

    def run(victim: Victim) -> Seen:
        request = victim.ask("resnet50", b"\0" * 16_000_000, bodies.OCTETS)
        token = request.token if with_token else ""
        head = Request(
            path=request.path, body=request.body, content_type=bodies.OCTETS, token=token
        ).render_head()
        part = request.body[:15_900_000]
        return _serve_beside(victim, lambda: hold_open(head, [part], victim.port, seconds=10.0))

    return run


def _serve_beside(victim: Victim, hold: Callable[[], tuple[socket.socket, str]]) -> Seen:
    """So many connections held open, then canaries one by one."""
    with contextlib.ExitStack() as held:
        fates: Counter[str] = Counter()

        def one() -> None:
            try:
                link, fate = hold()
            except OSError as problem:
                fates[type(problem).__name__] += 1
                return
            held.callback(link.close)
            fates[fate] += 1

        threads = [threading.Thread(target=one) for _ in range(HELD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcomes, faults = ask_canaries(victim, rounds=5)
    fate = ", ".join(f"{count} × {kind}" for kind, count in sorted(fates.items()))
    return Seen(outcomes=outcomes, notes=(f"of {HELD} connections held: {fate}",), faults=faults)


def ask_canaries(victim: Victim, rounds: int) -> tuple[list[Outcome], tuple[str, ...]]:
    """Of each model in turn; wrong ones are faults."""
    asked = [(model, victim.send(victim.canary(model))) for _ in range(rounds) for model in MODELS]
    wrong = sum(not victim.is_right(model, outcome) for model, outcome in asked)
    text = f"{wrong} of {len(asked)} canaries not answered right within {CANARY_SECONDS:g} s meanwhile"
    return [outcome for _, outcome in asked], (text,) if wrong else ()


def dribble(victim: Victim) -> Seen:
    """Headers that come a byte at a time and never end."""
    ended = threading.Event()

    def drip(link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link.sendall(b"POST /predictions/resnet50 HTTP/1.1\r\nX-Slow: ")
            while not ended.wait(0.5):
                link.sendall(b"a")

    with contextlib.ExitStack() as held:
        held.callback(ended.set)
        for _ in range(HELD):
            link = held.enter_context(socket.create_connection((HOST, victim.port), timeout=CANARY_SECONDS))
            threading.Thread(target=drip, args=(link,), daemon=True).start()
        outcomes, faults = ask_canaries(victim, rounds=5)
    return Seen(outcomes=outcomes, faults=faults)


def send_long_texts(victim: Victim) -> Seen:
    """The worst legal requests, and short sentences beside them."""
    long = [victim.ask("bert", bodies.make_long_texts(), bodies.JSON)] * 16
    short: list[Outcome] = []
    ended = threading.Event()

    def ask_short() -> None:
        while not ended.wait(1.0):
            short.append(victim.send(victim.canary("bert"), seconds=LONG_SECONDS))

    thread = threading.Thread(target=ask_short)
    thread.start()
    try:
        outcomes = send_all(long, victim.port, clients=16, seconds=LONG_SECONDS)
    finally:
        ended.set()
        thread.join()
    wrong = sum(not victim.is_right("bert", one) and one.status not in (429, 503) for one in short)
    slowest = max((one.seconds for one in short), default=0.0)
    note = f"{len(short)} short sentences beside them, the slowest answered after {slowest:.1f} s"
    faults = (f"{wrong} of {len(short)} short sentences were not answered right",) if wrong else ()
    return Seen(outcomes=outcomes, notes=(note,), faults=faults)
