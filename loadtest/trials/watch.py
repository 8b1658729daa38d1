"""What an experiment looks at beside a trial, while the load is on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.systems.system import System


class Watch(Protocol):
    """Looks from the begin of a load to its end; the window is cut out of it when its edges are known."""

    def cut(self, begin: float, end: float) -> Mapping[str, Any]:
        """What was seen between two moments, seconds since the epoch; plain values."""


Watching = Callable[[System], contextlib.AbstractContextManager[Watch]]


@dataclass(kw_only=True)
class Seen:
    """Of what looks before and behind the load alone: the whole load counts, not its window."""

    values: dict[str, Any] = field(default_factory=dict)

    def cut(self, _begin: float, _end: float) -> Mapping[str, Any]:
        return self.values


def watch_nothing(_: System) -> contextlib.AbstractContextManager[Watch]:
    return contextlib.nullcontext(Seen())
