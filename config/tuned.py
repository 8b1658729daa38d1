"""tuned.json: the numbers that `make tune` found here, what they were made for, and their evidence.

A number that is missing in it means that the default is right. What a person asks for wins over all of them,
and none is used where what they were made for has changed. Who wants none of them removes the file.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from config.errors import ConfigError, explain_invalid
from config.folders import write_text_atomically
from config.settings import Settings
from handlers.backends.catalogue import BACKENDS
from handlers.sums import identify_packed

if TYPE_CHECKING:
    from config.planning.facts import Facts

TUNED_FILE = "tuned.json"
OF_ALL = ("workers", "cores_per_worker")
"""Numbers that have the name of the setting they stand in for."""
Chosen = Annotated[str, Field(pattern="^(workers|cores_per_worker|batch|delay_ms|variant)$")]
"""The last three by model; the variant is backend and precision, and the other numbers are of it."""
DISTRIBUTIONS = ("torch", "torchserve", "torchvision", "transformers")
"""What serves, and what computes beside the backends."""
MEMORY_TOLERANCE = 0.02
"""Kernels keep some MiB more or less for themselves from one start to the next."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A tuned plan."""

    schema: Literal[1] = 1
    """Of tuned.json: another is not read."""
    made_for: Mapping[str, Any] = field(default_factory=dict)
    """What the numbers hold for; as `describe_present` has it."""
    limit: Mapping[str, int | float] = field(default_factory=dict)
    """`percentile` and `ms`: what each plan that was tried had to keep."""
    chosen: Mapping[Chosen, Any] = field(default_factory=dict)
    """The numbers, and variants, by name."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """By model: a sentence with the figures and the trials they are from."""

    def fill(self, settings: Settings) -> Settings:
        """What was asked for, and the tuned layout where nobody asked for another."""
        given = {name: self.chosen[name] for name in OF_ALL if name in self.chosen}
        return settings.model_copy(update={k: v for k, v in given.items() if getattr(settings, k) is None})

    def find(self, name: str, model: str) -> Any:
        """The tuned value of a model; None where it is not among them."""
        return self.chosen.get(name, {}).get(model)

    def explain(self, model: str = "") -> str:
        """The reason of a tuned value, of one model or of all."""
        texts = (
            f"{name}: {text}" for name, text in sorted(self.evidence.items()) if text and model in ("", name)
        )
        return "; ".join((f"tuned on this machine ({TUNED_FILE})", *texts))


NOT_TUNED = Tuned()


def judge_tuned(file: Path, facts: Facts) -> tuple[Tuned, list[str]]:
    """The numbers that hold here, and a line that says so, or why they do not; nothing without a file."""
    tuned = read_tuned(file)
    if tuned is None:
        return NOT_TUNED, []
    if stale := explain_stale(tuned, facts):
        return NOT_TUNED, [f"tuned: not used, stale: {stale}; do: make tune, or remove {file}"]
    chosen = json.dumps(tuned.chosen) if tuned.chosen else "the defaults are right"
    limit = f"p{tuned.limit['percentile']:g} ≤ {tuned.limit['ms']:g} ms"
    return tuned, [f"tuned: used, for {limit}: {chosen} ({file})"]


def read_tuned(file: Path) -> Tuned | None:
    """What is in the file; None when there is none."""
    try:
        return TypeAdapter(Tuned).validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"the tuned plan cannot be read: {file}: {problem}; remove it") from problem
    except ValidationError as problem:
        raise ConfigError(f"the tuned plan: {file}: {explain_invalid(problem)}; remove it") from problem


def write_tuned(file: Path, tuned: Tuned) -> None:
    """Whole or not at all."""
    text = json.dumps(asdict(tuned), indent=1, sort_keys=True, ensure_ascii=False)
    write_text_atomically(file, text + "\n")


def describe_present(facts: Facts) -> dict[str, Any]:
    """What a tuned plan made now would be made for."""
    machine, settings, models = facts.machine, facts.settings, sorted(facts.archives)
    backends = {name: settings.of_model("backend", name) for name in models}
    return {
        "cpu_model": machine.model_name, "cpus": list(machine.cpus_allowed), "quota_cpus": machine.quota_cpus,
        "memory_mib": machine.memory_limit_mib, "models": models,
        "archives": {name: identify_packed(Path(facts.model_store) / f"{name}.mar") for name in models},
        "backends": backends,
        # Where none is named, of all that were tried: one that is installed later makes a tuned plan stale.
        "versions": read_versions(BACKENDS if None in backends.values() else map(str, backends.values())),
        "precision": settings.precision, "mode": settings.mode, "instances": settings.instances,
    }  # fmt: skip


def read_versions(backends: Iterable[str]) -> dict[str, str]:
    """Of Python, and of what computes and serves."""
    found = {"python": platform.python_version()}
    for name in filter(None, (*DISTRIBUTIONS, *(BACKENDS[backend].distribution for backend in backends))):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a plan can be validated before anything is installed
            continue
    return found


def explain_stale(tuned: Tuned, facts: Facts) -> str:
    """Which of what it was made for is another now: then → now; empty where all is as it was."""
    changed, made, present = [], tuned.made_for, describe_present(facts)
    both = {*present["models"]} & {*(made.get("models") or ())}
    for name in dict.fromkeys([*present, *made]):
        then, now = made.get(name), present.get(name)
        if name == "memory_mib" and then and abs(then - (now or 0)) <= MEMORY_TOLERANCE * then:
            continue
        if isinstance(then, dict) and isinstance(now, dict):
            # Of a model that is served only then, or only now, its name says all.
            keys = [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]
            keys = keys if name == "versions" else [key for key in keys if key in both]
            texts = [f"{key} built again" if name == "archives" else f"{key} {then.get(key)} → {now.get(key)}"
                     for key in keys]  # fmt: skip
            changed += [", ".join(texts)] if texts else []
        elif then != now:
            changed.append(f"{name.replace('_', ' ')}: {then} → {now}")
    if facts.settings.slo_p99_ms not in (None, tuned.limit.get("ms")):
        changed.append(f"limit: {tuned.limit.get('ms')} ms → {facts.settings.slo_p99_ms} ms")
    return "; ".join(changed)
