"""Sends a model requests whose answers are known, waits for them beside other work, and keeps the verdict."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from server.errors import ApiError

# A full queue: to be taken out of service for being busy would help nobody.
_BUSY = (429, 503)
_MOST_UNDER_WAY = 4  # more would only lengthen the queue they wait in

Send = Callable[[], "Future[str]"]
"""Sends one; the result is what is wrong with its answer, empty when nothing is, or an ApiError."""


@dataclass(kw_only=True)
class _Sent:
    """One that is under way."""

    answer: Future[str]
    held_since: float | None = None
    """When it was first seen to have left the queue: from then on a worker holds it."""


class Canaries:
    """Those of one model.

    A wrong answer or an error stays the verdict until a later answer is right. One that waits its turn says
    nothing; one that a worker holds for longer than any batch takes says that this worker hangs. TorchServe's
    queue is first come, first served, so when nothing waits, all that were sent are in a worker.
    """

    def __init__(self, send: Send, held_seconds: float) -> None:
        self._send = send
        self._held_seconds = held_seconds
        self._under_way: list[_Sent] = []
        self._verdict = ""
        self.answered = 0
        """How many workers answered so far, right or wrong."""

    def ask(self) -> None:
        """Send one more."""
        if len(self._under_way) < _MOST_UNDER_WAY:
            self._under_way.append(_Sent(answer=self._send()))

    @property
    def under_way(self) -> int:
        """How many are sent and not answered."""
        return len(self._under_way)

    def judge(self, waiting: int, now: float) -> str:
        """What is wrong as far as is known now; empty when nothing is. `waiting` counts the queue."""
        for sent in self._under_way:
            if sent.answer.done():
                self._verdict = self._weigh(sent.answer)
            elif not waiting and sent.held_since is None:
                sent.held_since = now
        self._under_way = [sent for sent in self._under_way if not sent.answer.done()]
        since = [sent.held_since for sent in self._under_way if sent.held_since is not None]
        held = now - min(since, default=now)
        if held > self._held_seconds:
            return f"a known request is not answered for {held:.0f} s, and none waits: a worker hangs"
        return self._verdict

    def _weigh(self, answer: Future[str]) -> str:
        problem = answer.exception()
        if problem is None:
            self.answered += 1
            return answer.result()
        busy = isinstance(problem, ApiError) and problem.status in _BUSY
        return self._verdict if busy else str(problem)
