"""What can be wrong with a machine or a step of the set-up, in the words a person reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One conflict that would keep the server from running."""

    what: str
    """The thing that is wrong: `Java`, `torch and torchvision`."""
    needed: str
    """What it must be, and for whom."""
    got: str
    """What is there, and where it was seen."""
    do: str
    """What cures it."""

    def render(self) -> str:
        return f"{self.what}: must be {self.needed}: got {self.got}\n  do: {self.do}"


class SetupError(Exception):
    """A step of the set-up cannot go on; the text says what, which, got, do."""
