"""What one check says: asked, got, where that was read, and what to do when they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from config.plan import Plan
from server.verify.evidence import WorkerEvidence

OK = "ok"
DIFFERS = "DIFFERS"
NOT_CHECKABLE = "not checkable"

NO_ANSWER = "unknown: no answer to describe"
"""What checks got that need the worker's own description."""
RESTART = "make stop && make serve"
RECONFIGURE = f"config.properties was changed behind the plan's back? make plan && {RESTART}"
"""The cure of most differences in what TorchServe read when it started."""
TRY_AGAIN = "try again when its workers are free to answer"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    item: str
    """What was compared."""
    asked: str
    """What the plan says."""
    got: str
    """What the live process shows."""
    evidence: str
    """Where that was read."""
    state: str
    """ok, DIFFERS or not checkable."""
    cure: str = ""
    """What to do about a difference."""

    @property
    def ok(self) -> bool:
        """Whether it is as asked; what cannot be checked is not."""
        return self.state == OK


Check = Callable[[Plan, WorkerEvidence], Finding]
"""A check of one worker."""


def compare(
    item: str, asked: str, got: str, *, evidence: str, cure: str, same: bool | None = None
) -> Finding:
    """ok when `same` (by default: when the texts are equal), else DIFFERS with the cure."""
    good = asked == got if same is None else same
    state = OK if good else DIFFERS
    return Finding(item=item, asked=asked, got=got, evidence=evidence, state=state, cure="" if good else cure)


def need_describe(item: str) -> Callable[[Check], Check]:
    """Make a check say that its fact is unknown where the worker did not describe itself.

    That is a difference, unless there is an excuse: then it is not checkable now.
    """

    def wrap(check: Check) -> Check:
        def checked(plan: Plan, seen: WorkerEvidence) -> Finding:
            if seen.describe is not None:
                return check(plan, seen)
            if seen.excuse:
                return cannot_check(item, "as planned", seen.excuse, evidence="describe", cure=TRY_AGAIN)
            return compare(item, "as planned", NO_ANSWER, evidence="describe", cure="see describe")

        return checked

    return wrap


def cannot_check(item: str, asked: str, reason: str, *, evidence: str, cure: str) -> Finding:
    """The fact cannot be read and no difference can follow from it; said, never passed over."""
    return Finding(item=item, asked=asked, got=reason, evidence=evidence, state=NOT_CHECKABLE, cure=cure)
