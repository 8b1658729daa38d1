"""The systems of an experiment that are up: brought up when a block needs them, kept for the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadtest.systems.system import System

PORT_STEP = 100
PLACES = 60
"""Of a whole experiment: none gets the ports of one that is still up."""


@dataclass(kw_only=True)
class Site:
    """Where systems are brought up."""

    store: Path
    """Folder with the archives."""
    folder: Path
    """For run directories and variants; gone when the command ends."""
    first_port: int
    say: Callable[[str], None]
    _places: int = 0

    def place(self, kind: str) -> tuple[Path, int]:
        """A run directory and a port of its own, and as many after it as a door and its instances take."""
        self._places += 1
        folder = self.folder / f"{kind}-{self._places}"
        folder.mkdir(parents=True)
        return folder, self.first_port + self._places % PLACES * PORT_STEP


def see_nothing(_: System) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Member:
    """How a system is brought up."""

    name: str
    open: Callable[[Site], contextlib.AbstractContextManager[System]]
    inspect: Callable[[System], Mapping[str, Any]] = see_nothing
    """What the experiment itself wants to see of it when it is up, before its first trial; plain values."""
    inspect_after: Callable[[System], Mapping[str, Any]] = see_nothing
    """The same behind the last trial of a block; both end in SystemFacts.seen."""


@dataclass(frozen=True, kw_only=True)
class Up:
    """One system that is up."""

    member: Member
    system: System
    stack: contextlib.ExitStack
    halted: bool
    """Whether it stands still but for its turns."""
    seen: Mapping[str, Any]
    start: Mapping[str, Any] | None = None
    """How long its start took; None where it was up before."""


@dataclass(kw_only=True)
class Fleet:
    """Brings systems up one at a time; `opened` takes all down."""

    site: Site
    up: dict[str, Up] = field(default_factory=dict)

    def bring(self, member: Member, *, halt: bool) -> Up:
        """The member's system, started and looked at if it is not up; RefusedError when the kit refuses it.

        Halted where others of its block are measured meanwhile, else running.
        """
        one = replace(self.up.get(member.name) or self._open(member), member=member, halted=halt)
        self.up[member.name] = one
        if halt:
            one.system.halt()
        else:
            one.system.resume()
        return one

    def _open(self, member: Member) -> Up:
        with contextlib.ExitStack() as stack:
            system = stack.enter_context(member.open(self.site))
            seen, start = member.inspect(system), system.start
            return Up(
                member=member, system=system, stack=stack.pop_all(), halted=False, seen=seen, start=start
            )

    def keep_only(self, names: Collection[str]) -> None:
        """Take the others down, all at once: each takes seconds, in which it does little."""
        gone = [self.up.pop(name) for name in list(self.up) if name not in names]
        with ThreadPoolExecutor(max_workers=max(1, len(gone))) as stops:
            # list: an error in one of them is raised here.
            list(stops.map(lambda one: one.stack.close(), gone))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Fleet]:
        """Nothing stays up behind it."""
        try:
            yield self
        finally:
            self.keep_only(())
