"""tuned.json: the numbers that `make tune` found here, what they were made for, and their evidence.

A number that is missing in it means that the default is right. What a person asks for wins over all of them,
and none is used where what they were made for has changed.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.folders import write_text_atomically
from config.plan import Inputs, Setting
from config.topology import Topology
from handlers.backends.catalogue import ALL, BACKENDS, parse_backend
from handlers.sums import identify_packed

SCHEMA = 1
TUNED_FILE = "tuned.json"
FIELDS = frozenset({"made_for", "limit", "chosen", "evidence"})
OF_ALL = ("workers", "cores_per_worker")
"""Numbers that have the name of the input they stand in for."""
BY_MODEL = ("batch", "delay_ms", "variant")
"""The variant is backend and precision; the other numbers are of it."""
BY_MODEL_FACTS = ("archives", "backends")
CHOSEN = (*OF_ALL, *BY_MODEL)
DISTRIBUTIONS = ("torch", "torchserve", "torchvision", "transformers")
"""What serves, and what computes beside the backends."""
MEMORY_TOLERANCE = 0.02
"""Kernels keep some MiB more or less for themselves from one start to the next."""
CURE = "remove it, or give TUNED=0"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A tuned plan."""

    made_for: Mapping[str, Any] = field(default_factory=dict)
    """What the numbers hold for; as `describe_present` has it."""
    limit: Mapping[str, float] = field(default_factory=dict)
    """`percentile` and `ms`: what each plan that was raced had to keep."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """By name, of CHOSEN; batch and delay_ms by model."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """By model: a sentence with the figures and the trials they are from."""

    def leave_to(self, inputs: Inputs) -> Tuned:
        """Without the numbers that a person gave; those by model are left model by model (rules/batching)."""
        given = {name for name in OF_ALL if getattr(inputs, name) not in (None, "")}
        return replace(self, chosen={k: value for k, value in self.chosen.items() if k not in given})

    def fill(self, inputs: Inputs) -> Inputs:
        """What was asked for, and what was found best of the rest; batch and delay are the rules'."""
        return replace(inputs, **{name: self.chosen[name] for name in OF_ALL if name in self.chosen})

    def decide(self, name: str, model: str = "") -> Setting | None:
        """The tuned value of a model, or of all; None where it is not among them."""
        value = self.chosen.get(name)
        value = value.get(model) if name in BY_MODEL and value else value
        reason = self.explain(name, model)
        return None if value is None or reason is None else Setting(value=value, reason=reason)

    def explain(self, name: str, model: str = "") -> str | None:
        """Why it is what it is; None where it is not tuned."""
        if name not in self.chosen:
            return None
        evidence = {model: self.evidence.get(model, "")} if model else self.evidence
        each = "; ".join(f"{one}: {text}" for one, text in sorted(evidence.items()) if text)
        return f"tuned on this machine ({TUNED_FILE})" + (f"; {each}" if each else "")


NOT_TUNED = Tuned()


def judge_tuned(file: Path, topology: Topology, inputs: Inputs) -> tuple[Tuned, list[str]]:
    """The numbers that hold here, and a line that says so, or why they do not; nothing without a file."""
    tuned = read_tuned(file)
    if tuned is None:
        return NOT_TUNED, []
    stale = explain_stale(tuned, topology, inputs)
    if stale:
        return NOT_TUNED, [f"tuned: not used, stale: {stale}; do: make tune, or TUNED=0 ({file})"]
    limit = f"p{tuned.limit['percentile']:g} ≤ {tuned.limit['ms']:g} ms"
    return tuned, [f"tuned: used, for {limit}: {_render_chosen(tuned)} ({file})"]


def _render_chosen(tuned: Tuned) -> str:
    parts = []
    for name, value in sorted(tuned.chosen.items()):
        by_model = sorted(value.items()) if isinstance(value, dict) else None
        shown = value if by_model is None else " ".join(f"{model} {one}" for model, one in by_model)
        parts.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(parts) or "the defaults are right"


def read_tuned(file: Path | str) -> Tuned | None:
    """What is in the file; None when there is none."""
    try:
        raw = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"the tuned plan cannot be read: {file}: {problem}; {CURE}") from problem
    known = isinstance(raw, dict) and raw.get("schema") == SCHEMA and raw.keys() - {"schema"} == FIELDS
    if not known or not raw["chosen"].keys() <= {*CHOSEN}:
        raise ConfigError(f"the tuned plan must be one that `make tune` wrote: got another ({file}); {CURE}")
    return Tuned(**{name: raw[name] for name in FIELDS})


def write_tuned(file: Path, tuned: Tuned) -> None:
    """Whole or not at all."""
    raw = {"schema": SCHEMA, **asdict(tuned)}
    write_text_atomically(file, json.dumps(raw, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def describe_present(topology: Topology, inputs: Inputs) -> dict[str, Any]:
    """What a tuned plan made now would be made for."""
    chosen = parse_backend(inputs.backend)
    backends = {name: chosen.get(name, chosen.get(ALL)) for name in inputs.models}
    return {
        "cpu_model": topology.model_name,
        "cpus": list(topology.cpus_allowed),
        "quota_cpus": topology.quota_cpus,
        "memory_mib": topology.memory_limit_mib,
        "models": list(inputs.models),
        "archives": {
            name: identify_packed(Path(inputs.model_store) / f"{name}.mar") for name in inputs.models
        },
        "backends": backends,
        # Where none is named, of all that were raced: one that is installed later makes a tuned plan stale.
        "versions": read_versions(BACKENDS if None in backends.values() else filter(None, backends.values())),
        "precision": inputs.precision,
        "profile": inputs.profile,
        "instances": inputs.instances,
    }


def read_versions(backends: Iterable[str]) -> dict[str, str]:
    """Of Python, and of what computes and serves."""
    found = {"python": platform.python_version()}
    for name in filter(None, (*DISTRIBUTIONS, *(BACKENDS[backend].distribution for backend in backends))):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a plan can be judged before anything is installed
            continue
    return found


def explain_stale(tuned: Tuned, topology: Topology, inputs: Inputs) -> str:
    """Which of what it was made for is another now: then → now; empty where all is as it was."""
    now = describe_present(topology, inputs)
    both = {*now["models"]} & {*(tuned.made_for.get("models") or ())}
    then, now = _leave_models(tuned.made_for, both), _leave_models(now, both)
    changed = [
        _show(name, then.get(name), now.get(name))
        for name in dict.fromkeys([*now, *then])
        if not _is_same(name, then.get(name), now.get(name))
    ]
    asked, limit = inputs.slo_p99_ms, tuned.limit.get("ms")
    return "; ".join([*changed, *([f"limit: {limit} ms → {asked} ms"] if asked not in (None, limit) else [])])


def _leave_models(facts: Mapping[str, Any], models: Collection[str]) -> dict[str, Any]:
    """Of one that is served only then, or only now, its name says all."""
    left = {
        name: {model: value for model, value in facts[name].items() if model in models}
        for name in BY_MODEL_FACTS
        if isinstance(facts.get(name), dict)
    }
    return {**facts, **left}


def _is_same(name: str, then: Any, now: Any) -> bool:
    if name == "memory_mib" and isinstance(then, int):
        return abs(then - now) <= MEMORY_TOLERANCE * then
    return bool(then == now)


def _show(name: str, then: Any, now: Any) -> str:
    """Of a mapping only what differs; an archive's id tells nobody anything."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return f"{name.replace('_', ' ')}: {then} → {now}"
    keys = [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]
    if name == "archives":
        return f"archives: {', '.join(keys)} built anew"
    return ", ".join(f"{key} {then.get(key)} → {now.get(key)}" for key in keys)
