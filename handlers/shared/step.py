"""One step of a load: what it runs, when it is passed over, and what is kept of it.

Standard library alone when imported, as the engines are that list them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from handlers.shared.state import LoadState


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why a step is not run."""

    status: str
    """`off`: switched off, or `not applicable`: it means nothing for this model."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What became of one step, as the worker logs it and describe answers it."""

    name: str
    status: str
    reason: str
    seconds: float


def always(_state: LoadState) -> Skip | None:
    """Never passed over."""
    return None


def unless_off(name: str) -> Callable[[LoadState], Skip | None]:
    """Passed over where the plan switches `name` off."""

    def skip(state: LoadState) -> Skip | None:
        if name in state.options.off:
            return Skip(status="off", reason="switched off by the plan")
        return None

    return skip


@dataclass(frozen=True, kw_only=True)
class Step:
    """One entry of a list of steps."""

    name: str
    run: Callable[[LoadState], None]
    skip: Callable[[LoadState], Skip | None] = always
