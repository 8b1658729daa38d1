"""A load: what is sent, how it arrives, for how long. Scenarios are loads in files (scenarios/*.yaml).

closed.yaml and open.yaml are of every model that is served; `<model>-open.yaml` stands in for one of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from loadtest.errors import LoadTestError
from loadtest.stats import least_requests

SCENARIOS = Path(__file__).with_name("scenarios")
DRIVERS = ("locust", "ab")
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
AUTO = "auto"
LOOPS = ("closed", "open")
LONGEST_S = 3600
"""Longer ones belong to a soak test."""
MOST_S = 120.0
"""Of a repeat of an open loop, where nobody asked for more."""
MARGIN = 1.2
"""More requests than the percentile needs: Poisson arrivals of 240 differ by 15 from run to run."""
Level = float | str
"""Users or requests a second; `auto`; or a share of the capacity, such as `60%`."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One load of one server. A closed loop has users, who wait for each answer; an open loop has a rate."""

    name: str
    models: tuple[str, ...]
    """Empty with a locustfile of one's own, which sends what it likes."""
    payloads: str = ""
    """A set's name or a folder (payloads/sets.py); empty: what suits the model (`find_usual` there)."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Model → its share of the requests, where several are asked; empty: as many as there are payloads."""
    users: int | None = None
    """Of a closed loop; None with no rate either: as many as keep full batches in every worker."""
    rate: float | None = None
    """Requests a second of an open loop."""
    seed: int = 1
    """The same seed gives the same arrivals and the same order of payloads."""
    driver: str = "locust"
    locustfile: str = ""
    """A locustfile of one's own, instead of the kit's."""
    warm_up_s: float = 5.0
    """Under the same load, not measured."""
    duration_s: float = 15.0
    timeout_s: float = 60.0
    """A request without a whole answer by then is an error."""
    percentile: float = 95.0
    """The latency that an open loop quotes."""
    limit_ms: float | None = None
    """What that percentile must keep."""
    in_order: bool = False
    """A closed loop sends the payloads as they are listed; else each round in another order."""
    leave_out_first_round: bool = False
    """The window opens when each user of a closed loop has its first answer: until then queues fill."""
    least_rounds: int = 0
    """The window lasts at least so many answers of each user, by the rate that the server had before."""

    @property
    def is_open(self) -> bool:
        return self.rate is not None

    @property
    def level(self) -> float:
        """Requests a second, or users."""
        return float(self.rate if self.rate is not None else self.users or 0)

    @property
    def place(self) -> str:
        """`16 users` or `20 requests/s`."""
        return f"{self.rate:.4g} requests/s" if self.is_open else f"{self.users or AUTO} users"

    @property
    def validated(self) -> bool:
        """Whether answers can be validated: ab keeps none, and those of a foreign locustfile are unknown."""
        return self.driver == "locust" and not self.locustfile


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A load at one level or several, each measured `repeats` times, in turns."""

    load: Load
    """Without a level."""
    levels: tuple[Level, ...]
    is_open: bool
    repeats: int = 3
    fixed: bool = True
    """False: an open loop lasts as long as its percentile needs."""

    @property
    def name(self) -> str:
        return self.load.name

    def at(self, level: Level, capacity: float = math.nan) -> Load:
        """The load at one level; `capacity` in requests/s is what a share is of."""
        if not self.is_open:
            return replace(self.load, users=None if level == AUTO else int(level))
        share = parse_share(level)
        load = replace(self.load, rate=float(f"{share * capacity:.4g}" if share else level))
        return load if self.fixed else replace(load, duration_s=find_duration(load, self.repeats))


def find_duration(load: Load, repeats: int, most_s: float = MOST_S) -> float:
    """Seconds of a repeat of an open loop: 15 s of a slow model are too few requests for its percentile."""
    needed = MARGIN * least_requests(load.percentile) / (repeats * load.level)
    return max(load.duration_s, min(most_s, math.ceil(needed)))


KEYS = (
    *("payloads", "seed", "driver", "warm_up_s", "duration_s", "timeout_s"),
    *("percentile", "limit_ms"),
)
"""Of a scenario's file, fields of Load, beside `model`, `users` or `rate`, and `repeats`."""


def read_scenario(name: str, folder: Path = SCENARIOS) -> Scenario:
    """`<model>-closed` or `<model>-open`, by the file of that name or the one of every model; or a file of
    one's own by its path."""
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    (model, _, loop), of_model = name.rpartition("-"), {}
    if not path.is_file() and model and loop in LOOPS:
        path, of_model = folder / f"{loop}.yaml", {"model": model}
    if not path.is_file():
        raise LoadTestError(f"--scenario must be MODEL-closed, MODEL-open, or a .yaml file: got {name}")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LoadTestError(f"{path}: not YAML: {error}") from error
    whole = {**of_model, **raw} if isinstance(raw, dict) else raw
    return parse_scenario(whole, name=name if of_model else path.stem, source=str(path))


def parse_scenario(raw: Any, *, name: str, source: str) -> Scenario:
    """Check and freeze; LoadTestError names key, allowed values, what was there, and the file."""
    allowed = ["model", *KEYS, "users", "rate", "repeats"]
    if not isinstance(raw, dict):
        raise LoadTestError(f"a scenario must be a mapping with {', '.join(allowed)}: got {raw!r} ({source})")
    if unknown := [key for key in raw if key not in allowed]:
        raise LoadTestError(f"a scenario may hold {', '.join(allowed)}: got {unknown[0]!r} ({source})")
    if not isinstance(raw.get("model"), str) or not isinstance(raw.get("payloads", ""), str):
        raise LoadTestError(f"a scenario must name its model, and may name its payloads ({source})")
    if ("users" in raw) == ("rate" in raw):
        raise LoadTestError(f"a scenario must have users (closed loop) or a rate (open loop) ({source})")
    levels = raw["rate" if "rate" in raw else "users"]
    values = {key: value for key, value in raw.items() if key in KEYS}
    load = Load(name=name, models=(raw["model"],), **values)
    listed = tuple(levels) if isinstance(levels, list) else (levels,)
    repeats = raw.get("repeats", 3)
    known = {"is_open": "rate" in raw, "repeats": repeats, "fixed": "duration_s" in raw}
    return check_scenario(Scenario(load=load, levels=listed, **known), source)


def check_scenario(scenario: Scenario, source: str) -> Scenario:
    """The scenario itself when everything in it can be run; the same check guards what a command changes."""
    load = scenario.load
    drivers = ("locust",) if scenario.is_open else DRIVERS
    rules = [
        ("driver", load.driver in drivers, "locust (ab drives closed loops only)" if scenario.is_open
         else " or ".join(DRIVERS)),
        ("percentile", load.percentile in PERCENTILES, ", ".join(f"{p:g}" for p in PERCENTILES)),
        ("seed", _is_number(load.seed, 0, 2**31) and load.seed == int(load.seed), "a whole number from 0"),
        ("warm_up_s", _is_number(load.warm_up_s, 0, LONGEST_S), f"0 to {LONGEST_S} seconds"),
        ("duration_s", _is_number(load.duration_s, 1, LONGEST_S), f"1 to {LONGEST_S} seconds"),
        ("timeout_s", _is_number(load.timeout_s, 0.1, 600), "0.1 to 600 seconds"),
        ("limit_ms", load.limit_ms is None or _is_number(load.limit_ms, 1e-9, math.inf), "above 0"),
    ]  # fmt: skip
    for key, good, wanted in rules:
        if not good:
            raise LoadTestError(f"{key} must be {wanted}: got {getattr(load, key)!r} ({source})")
    if not (_is_number(scenario.repeats, 1, 100) and scenario.repeats == int(scenario.repeats)):
        raise LoadTestError(f"repeats must be 1 to 100: got {scenario.repeats!r} ({source})")
    if not scenario.levels:
        raise LoadTestError(f"users or rate must have at least one value ({source})")
    for level in scenario.levels:
        _check_level(level, scenario.is_open, source)
    return scenario


def _check_level(level: Any, is_open: bool, source: str) -> None:
    if is_open and not (_is_number(level, 1e-9, 1e6) or parse_share(level)):
        raise LoadTestError(
            f"rate must be requests a second, or a share such as 60%: got {level!r} ({source})"
        )
    whole = _is_number(level, 1, 10_000) and level == int(level)
    if not is_open and not (level == AUTO or whole):
        raise LoadTestError(f"users must be 1 to 10000, or auto: got {level!r} ({source})")


def parse_share(level: Any) -> float | None:
    """0.6 for "60%"; None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", level) if isinstance(level, str) else None
    share = float(found.group(1)) / 100 if found else 0.0
    return share if 0 < share <= 2 else None


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def change_scenario(
    scenario: Scenario, *, levels: str = "", repeats: int | None = None, **changes: Any
) -> Scenario:
    """The scenario as a command line changes it, checked again; what is empty or None changes nothing.

    `changes` are fields of Load; `levels` are users or rates with commas or blanks between.
    """
    known = {one.name for one in fields(Load)}
    given = {key: value for key, value in changes.items() if value not in (None, "")}
    assert {*given} <= known
    times = scenario.repeats if repeats is None else repeats
    fixed = scenario.fixed or "duration_s" in given
    changed = replace(scenario, load=replace(scenario.load, **given), repeats=times, fixed=fixed)
    if levels:
        words = [word for word in re.split(r"[ ,]+", levels) if word]
        changed = replace(changed, levels=tuple(_parse_level(word) for word in words))
    return check_scenario(changed, "command line")


def _parse_level(word: str) -> Level:
    """A number where it is one; the check says what is wrong with anything else."""
    try:
        return float(word)
    except ValueError:
        return word
