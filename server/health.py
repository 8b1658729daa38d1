"""Keeps a file that says whether the server answers right: what a container's health check reads.

Written by the process that stays with the server, so that a check costs no Python start and no CPU quota.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from config.plan import Plan
from server.api import Client
from server.archives import Archive, check_answer
from server.errors import ApiError
from server.rundir import RunDir

READY = "ready"
STOPPING = "not ready: stopping"

LOOK_SECONDS = 5.0
# An inference of each model every half minute: a thousandth of a core.
LOOKS_PER_CANARY = 6
CANARY_TIMEOUT_S = 20.0
_SERVICE_UNAVAILABLE = 503


@dataclass(frozen=True, kw_only=True)
class Health:
    """Looks at one server."""

    plan: Plan
    """What was asked for."""
    archives: Mapping[str, Archive]
    """The canaries."""
    client: Client
    """TorchServe's addresses."""
    run: RunDir
    """Where the file is."""

    def look(self, *, ask: bool) -> str:
        """READY, or "not ready: " and why; with `ask`, canaries are asked too."""
        problems = [self._find_problem(name, ask=ask) for name in self.plan.models]
        found = "; ".join(problem for problem in problems if problem)
        return f"not ready: {found}" if found else READY

    def _find_problem(self, name: str, *, ask: bool) -> str:
        planned = int(self.plan.models[name].workers.value)
        try:
            workers = self.client.describe(name).get("workers", [])
        except ApiError as problem:
            return f"{name}: {problem}"
        up = sum(worker.get("status") == "READY" for worker in workers)
        if up < planned:
            return f"{name}: {up} of {planned} workers ready"
        return self._ask(name) if ask else ""

    def _ask(self, name: str) -> str:
        canary = self.archives[name].canary
        try:
            answer = self.client.predict(name, canary.body, canary.content_type, timeout_s=CANARY_TIMEOUT_S)
        except ApiError as problem:
            # A full queue: to be taken out of service for being busy would help nobody.
            return "" if problem.status == _SERVICE_UNAVAILABLE else f"{name}: {problem}"
        wrong = check_answer(canary, str(self.plan.models[name].precision.value), answer)
        return f"{name}: wrong answer: {wrong}" if wrong else ""

    def write(self, text: str) -> None:
        """Write beside the file and rename over it."""
        scratch = self.run.health.with_name(f".{self.run.health.name}.new")
        scratch.write_text(f"{text}\n", encoding="utf-8")
        scratch.replace(self.run.health)


@contextlib.contextmanager
def keep_health(health: Health, seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Look again and again in a thread; at the end, say that the server stops."""
    ended = threading.Event()
    thread = threading.Thread(target=_keep, args=(health, ended, seconds), daemon=True)
    health.write(READY)  # the start has just seen it
    thread.start()
    try:
        yield
    finally:
        ended.set()
        health.write(STOPPING)


def _keep(health: Health, ended: threading.Event, seconds: float) -> None:
    looks = 0
    while not ended.wait(seconds):
        looks += 1
        text = health.look(ask=looks % LOOKS_PER_CANARY == 0)
        if not ended.is_set():
            health.write(text)
