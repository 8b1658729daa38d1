"""What a command line changes of a scenario: one thing or more, checked as the file is."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.scenarios.scenario import Scenario, check_scenario


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the command line changes; empty texts change nothing."""

    duration: str = ""
    users: str = ""
    rate: str = ""
    driver: str = ""
    payloads: str = ""
    repeats: str = ""

    def fit(self, scenario: Scenario) -> bool:
        """Whether they make sense for it: USERS and ab need a closed loop, RATE an open one."""
        if scenario.is_open:
            return not self.users and self.driver != "ab"
        return not self.rate


def apply_overrides(scenario: Scenario, asked: Overrides) -> Scenario:
    """The scenario with one thing or more changed, checked again."""
    if not asked.fit(scenario):
        loop = scenario.arrival.loop
        wrong = "RATE" if asked.rate else "USERS" if asked.users else "DRIVER=ab"
        raise LoadTestError(
            f"{wrong} does not fit {scenario.name}, whose loop is {loop}; choose another SCENARIO"
        )
    changes: dict[str, Any] = {}
    if asked.users or asked.rate:
        changes["steps"] = tuple(
            _parse_step(word) for word in re.split(r"[ ,]+", asked.users or asked.rate) if word
        )
    if asked.duration:
        changes["duration_s"] = _parse_step(asked.duration)
    if asked.repeats:
        changes["repeats"] = _parse_step(asked.repeats)
    changes |= {key: getattr(asked, key) for key in ("driver", "payloads") if getattr(asked, key)}
    return check_scenario(replace(scenario, **changes), "command line")


def _parse_step(word: str) -> Any:
    """A number where it is one; the check says what is wrong with anything else."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word
