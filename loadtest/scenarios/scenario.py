"""A scenario: what is sent, how it arrives, for how long; read from loadtest/scenarios/*.yaml and checked,
and what a command line changes of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError

SCENARIOS = Path(__file__).parent
DRIVERS = ("locust", "ab")
LOOPS = ("closed", "open")
PROCESSES = ("poisson", "constant")
AUTO = "auto"
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
LONGEST_S = 3600
"""Longer ones belong to a soak test."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """How requests come."""

    loop: str
    """closed: a user sends the next request after an answer; open: requests come whatever happens."""
    process: str = "poisson"
    """Of an open loop: poisson (independent clients) or constant (a clock)."""
    seed: int = 1
    """The same seed gives the same arrivals and the same order of payloads."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Which latency is quoted, and what it must keep."""

    percentile: float = 95.0
    """The percentile that is quoted; it needs enough requests."""
    limit_ms: float | None = None
    """What it must keep; None asks for nothing."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One workload; experiments set the fields below `latency` in code, a file may too."""

    name: str
    """The file's name without its suffix."""
    model: str
    """The model that is asked."""
    payloads: str
    """photos, texts, one-photo, one-text, or a folder of your own."""
    arrival: Arrival
    """Closed or open loop."""
    steps: tuple[Step, ...]
    """Closed: numbers of users, or auto. Open: requests a second, or a share such as 60%."""
    driver: str = "locust"
    """locust or ab; ab can only drive a closed loop."""
    warm_up_s: float = 5.0
    """Under the same load, not measured."""
    duration_s: float = 15.0
    """Measured time of one repeat of one step."""
    repeats: int = 3
    """Of each step; steps take turns, so that the spread shows."""
    timeout_s: float = 60.0
    """A request without a whole answer by then is an error."""
    latency: Latency = Latency()
    """The percentile that is quoted."""
    allowed_error_share: float = 0.0
    """Errors up to this share of the requests do not make a run invalid."""
    shuffled: bool = True
    """False: a closed loop sends the payloads as they are listed, the first ones first in each repeat."""
    stop_after: int | None = None
    """A closed loop ends after so many requests instead of `duration_s`, which then only bounds it."""
    leave_out_first_round: bool = False
    """The window opens when each user of a closed loop has its first answer: until then queues fill."""
    least_rounds: int = 0
    """The window lasts at least so many answers of each user, by the rate that the system had before."""
    parts: int = 1
    """The window is cut into so many parts, to judge an unsteady system by its own spread."""

    @property
    def is_open(self) -> bool:
        return self.arrival.loop == "open"


Step = float | str
"""A number, "auto", or a share in percent such as "60%"."""


def list_scenarios(folder: Path = SCENARIOS) -> list[str]:
    """Names of all scenarios, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_scenario(name: str, folder: Path = SCENARIOS) -> Scenario:
    """A scenario by its name, or by the path of a file of your own."""
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(list_scenarios(folder))
        raise LoadTestError(f"SCENARIO must be one of {known}, or a .yaml file: got {name}")
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise LoadTestError(f"{path}: not YAML: {error}") from error
    return parse_scenario(raw, name=path.stem, source=str(path))


def parse_scenario(raw: Any, *, name: str, source: str) -> Scenario:
    """Check and freeze; LoadTestError names key, allowed values, what was there, and the file."""
    values = _take(raw, Scenario, "the scenario", source, without={"name"})
    arrival = Arrival(**_take(values.pop("arrival", None), Arrival, "arrival", source))
    latency = Latency(**_take(values.pop("latency", {}), Latency, "latency", source))
    steps = values.pop("steps", None)
    if not isinstance(steps, list) or not steps:
        raise LoadTestError(f"steps must be a list of one or more: got {steps!r} ({source})")
    scenario = Scenario(name=name, arrival=arrival, latency=latency, steps=tuple(steps), **values)
    return check_scenario(scenario, source)


def _take(raw: Any, kind: type, what: str, source: str, without: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    allowed = [field.name for field in fields(kind) if field.name not in without]
    if not isinstance(raw, dict):
        raise LoadTestError(f"{what} must be a mapping with {', '.join(allowed)}: got {raw!r} ({source})")
    unknown = [key for key in raw if key not in allowed]
    if unknown:
        raise LoadTestError(f"{what} may hold {', '.join(allowed)}: got {unknown[0]!r} ({source})")
    needed = [one.name for one in fields(kind) if one.name in allowed and one.default is MISSING]
    missing = [key for key in needed if key not in raw and key not in ("arrival", "steps")]
    if missing:
        raise LoadTestError(f"{what} must name {', '.join(missing)} ({source})")
    return dict(raw)


def check_scenario(scenario: Scenario, source: str) -> Scenario:
    """The scenario itself when everything in it can be run; the same check guards overrides."""
    for key, value, good, wanted in _rules(scenario):
        if not good(value):
            raise LoadTestError(f"{key} must be {wanted}: got {value!r} ({source})")
    for number, step in enumerate(scenario.steps):
        _check_step(step, number, scenario, source)
    return scenario


def _rules(scenario: Scenario) -> list[tuple[str, Any, Callable[[Any], bool], str]]:
    """(key, value, what it must fulfil, that in words)."""
    arrival, latency = scenario.arrival, scenario.latency
    drivers = DRIVERS[:1] if scenario.is_open else DRIVERS
    driver_words = "locust: ab drives closed loops only" if scenario.is_open else " or ".join(DRIVERS)
    above_0, from_1 = _or_nothing(_number(1e-9, math.inf)), _or_nothing(_whole(1, 2**63))
    percentiles = "one of " + ", ".join(f"{p:g}" for p in PERCENTILES)
    return [
        ("model", scenario.model, _is_name, "a model's name"),
        ("payloads", scenario.payloads, _is_name, "a payload set or a folder"),
        ("arrival.loop", arrival.loop, LOOPS.__contains__, " or ".join(LOOPS)),
        ("arrival.process", arrival.process, PROCESSES.__contains__, " or ".join(PROCESSES)),
        ("arrival.seed", arrival.seed, _whole(0, 2**31), "a whole number from 0"),
        ("driver", scenario.driver, drivers.__contains__, driver_words),
        ("warm_up_s", scenario.warm_up_s, _number(0, LONGEST_S), f"0 to {LONGEST_S} seconds"),
        ("duration_s", scenario.duration_s, _number(0.1, LONGEST_S), f"0.1 to {LONGEST_S} seconds"),
        ("repeats", scenario.repeats, _whole(1, 100), "a whole number from 1 to 100"),
        ("timeout_s", scenario.timeout_s, _number(0.1, 600), "0.1 to 600 seconds"),
        ("latency.percentile", latency.percentile, PERCENTILES.__contains__, percentiles),
        ("latency.limit_ms", latency.limit_ms, above_0, "more than 0, or nothing"),
        ("allowed_error_share", scenario.allowed_error_share, _number(0, 0.999), "from 0 to below 1"),
        ("shuffled", scenario.shuffled, _is_switch, "true or false"),
        ("stop_after", scenario.stop_after, from_1, "a whole number from 1, or nothing"),
        ("leave_out_first_round", scenario.leave_out_first_round, _is_switch, "true or false"),
        ("least_rounds", scenario.least_rounds, _whole(0, 100), "a whole number from 0 to 100"),
        ("parts", scenario.parts, _whole(1, 100), "a whole number from 1 to 100"),
    ]


def _check_step(step: Any, number: int, scenario: Scenario, source: str) -> None:
    if scenario.is_open:
        good = (_is_number(step) and step > 0) or parse_share(step) is not None
        wanted = "requests a second, or a share such as 60%"
    else:
        good = step == AUTO or (_is_whole(step) and 1 <= step <= 10_000)
        wanted = "a number of users from 1 to 10000, or auto"
    if not good:
        raise LoadTestError(f"steps[{number}] must be {wanted}: got {step!r} ({source})")


def parse_share(step: Any) -> float | None:
    """0.6 for "60%"; None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", step) if isinstance(step, str) else None
    share = float(found.group(1)) / 100 if found else 0.0
    return share if 0 < share <= 2 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and least <= value <= most


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: _is_whole(value) and least <= value <= most


def _or_nothing(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or good(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


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
