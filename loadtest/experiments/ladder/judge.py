"""Whether a rung was what it says, and what its figure means; pure, so that recorded facts can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.experiments.ladder.rungs import Rung
from loadtest.experiments.ladder.settings import ITEMS
from loadtest.results.stats import Interval
from loadtest.trials.validity import Finding

HELPS, SLOWS, NO_HELP = "helps", "slows", "no gain seen on this host"
COSTS, GAINS, NO_LOSS = "is worth having", "is better so on this host", "is not missed on this host"
UNKNOWN = "cannot be told from so few repeats"
NOT_AS_ASKED = "serve with its arguments, then `make verify`"
ON_BEFORE = "look at what put it on there: its log, and the environment it was started in"
WIDE = 1.5
"""An interval from 0.8 to 1.2 says that there is little; one that is wider says nothing."""
SeenStates = Mapping[str, Mapping[str, Any]]
"""Item → {state, detail}, as a block keeps it."""


def find_setting_doubts(rung: Rung, seen: SeenStates, before: SeenStates | None) -> list[Finding]:
    """Why its figure is not its setting's: it is not on, was on before, or is not all that differs."""
    doubts = []
    for item in ITEMS:
        asked, got = getattr(rung.settings, item), seen[item]["state"]
        if got is not None and got != asked:
            state = "its setting is not in effect" if item in rung.own else "another setting is not as asked"
            doubts.append(
                _doubt(rung, state, f"{item} asked {asked}: got {got} ({seen[item]['detail']})", NOT_AS_ASKED)
            )
    for item in rung.own if before else ():
        if before and seen[item]["state"] == before[item]["state"]:
            evidence = f"{item}: {seen[item]['state']} ({before[item]['detail']}) on {rung.before} too"
            doubts.append(_doubt(rung, "its setting was in effect before", evidence, ON_BEFORE))
    return doubts


def _doubt(rung: Rung, state: str, evidence: str, next_step: str) -> Finding:
    return Finding(rule="setting", system=rung.name, state=state, evidence=evidence, next_step=next_step)


def describe_setting(rung: Rung, seen: SeenStates, seen_before: SeenStates | None) -> str:
    """What was observed of its own settings: before → now."""
    parts = []
    for item in rung.own:
        before = "" if seen_before is None else f"{_show(seen_before[item])} → "
        parts.append(f"{item.replace('_', ' ')}: {before}{_show(seen[item])}")
    return "; ".join(parts)


def _show(seen: Mapping[str, Any]) -> str:
    state = "not told" if seen["state"] is None else str(seen["state"])
    return f"{state} ({seen['detail']})"


def judge_step(ratio: Interval) -> str:
    """What putting a setting on did."""
    return HELPS if ratio.low > 1 else SLOWS if ratio.high < 1 else UNKNOWN if _is_wide(ratio) else NO_HELP


def judge_left_out(ratio: Interval) -> str:
    """What taking it away from the top did."""
    return COSTS if ratio.high < 1 else GAINS if ratio.low > 1 else UNKNOWN if _is_wide(ratio) else NO_LOSS


def _is_wide(ratio: Interval) -> bool:
    return ratio.high / ratio.low > WIDE
