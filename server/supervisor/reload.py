"""Moves the traffic to other instances: they are started and verified, then the old ones are drained.

Where the memory holds one set only, an old instance ends before a new one starts, one after the other. What
fails on the way is taken back, and the server is what it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from config.terminal import Report
from server.processes import DRAIN_SECONDS
from server.supervisor.door import Door
from server.supervisor.instance import Instance

ENDS_WITHIN_S = 20.0
"""A keeper whose TorchServe has nothing to answer takes 2-3 s."""


class ReloadFailed(Exception):  # noqa: N818 - it is an outcome, with its explanation
    """Nothing was changed, and why."""


@dataclass(kw_only=True)
class Reload:
    """Between two sets of instances; `go` is driven by the supervisor's loop, a step each turn."""

    instances: dict[str, Instance]
    """The supervisor's own: what is in it is looked at and asked."""
    new: Sequence[Instance]
    door: Door
    report: Report
    beside: bool
    """Both sets fit in the memory at once."""
    again: Callable[[Instance], Instance]
    """The same instance, to be started anew."""
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._old = list(self.instances.values())
        self._gone: list[Instance] = []

    def go(self) -> Iterator[str]:
        """Words for what is waited for; ends when only the new set is left, or with ReloadFailed."""
        try:
            for olds, news in self._pair():
                if not self.beside:
                    yield from self._retire(olds)
                yield from self._start(news)
                if self.beside:
                    yield from self._retire(olds)
        except ReloadFailed:
            self._take_back()
            raise

    def _pair(self) -> list[tuple[Sequence[Instance], Sequence[Instance]]]:
        """What ends, and what starts for it."""
        if self.beside:
            return [(self._old, self.new)]
        count = max(len(self._old), len(self.new))
        return [(self._old[place : place + 1], self.new[place : place + 1]) for place in range(count)]

    def _start(self, news: Sequence[Instance]) -> Iterator[str]:
        """One at a time: a load takes the cores from those that serve."""
        for new in news:
            self.instances[new.name] = new
            while not new.ready:
                if causes := new.describe().causes:
                    raise ReloadFailed(f"{new.name}: {causes[-1].cause}")
                yield f"starting {new.name}"
            self.report(f"reload: {new.name} verified; the door asks it from now on")

    def _retire(self, olds: Sequence[Instance]) -> Iterator[str]:
        """No new requests; then the end, once nothing is unanswered."""
        for old in olds:
            old.retired = True
        yield f"draining {_name(olds)}"  # the door is told in this turn
        names, deadline = [old.name for old in olds], self.now() + DRAIN_SECONDS
        while self.door.count_in_hand(names) and self.now() < deadline:
            yield f"draining {_name(olds)}"
        for old in olds:
            old.ask_to_end()
        deadline = self.now() + ENDS_WITHIN_S
        while not all(old.has_ended() for old in olds) and self.now() < deadline:
            yield f"ending {_name(olds)}"
        for old in olds:
            if not old.has_ended():
                old.kill()
            del self.instances[old.name]
            self._gone.append(old)

    def _take_back(self) -> None:
        for new in self.new:
            if self.instances.pop(new.name, None):
                new.kill()
        for old in self._old:
            old.retired = False
            self.instances[old.name] = self.again(old) if old in self._gone else old


def _name(instances: Sequence[Instance]) -> str:
    return ", ".join(instance.name for instance in instances)


def fits_beside(old: Mapping[str, Instance], available_mib: int, limit_mib: int) -> bool:
    """Whether the memory holds as much again as the old set holds now, and a tenth more: the machine's, and
    what this server may have of it, as a container's limit says."""
    held = sum(sum(instance.seen.anonymous_mib.values()) for instance in old.values())
    return held * 1.1 <= min(available_mib, limit_mib - held)
