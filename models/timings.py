"""Times the archives a job names, each by the backend and in the precision it says, unless it was before.

The job is what `python -m config --timing-job` prints: how the workers would run, and batches of which sizes
to time. The file of timings is what batches are planned by.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from handlers.backends.catalogue import BACKENDS
from handlers.definition import Packed, Variant
from handlers.shared.options import OPTIONS_VARIABLE
from models.errors import BuildError, InputError
from models.fresh import BUILD_DISTRIBUTIONS, read_built
from models.gate.figures import Figures
from models.gate.verdict import describe
from models.progress import doing
from models.request import BASELINE
from models.slots import SlotError, Slots, Taken, start_slots
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
SCHEMA = 5
TUNING_PREFIXES = (
    *("OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_", "MALLOC_", "TCMALLOC_", "TS_", "LD_"),
    *("PYTORCH_", "TORCH_", "ATEN_", "PYTHON", "GLIBC_"),
    *(prefix for backend in BACKENDS.values() for prefix in backend.variables),
)
"""Variables of a shell that would change the timing; a worker does not get them either."""
SIGNIFICANT_DIGITS = 3
ROUNDS = 3
"""Of all sizes: each is timed three times at least, a few seconds apart."""
UNDISTURBED = 0.9
"""Share of the time that a process that does nothing but compute must have its CPU."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be timed; the fields are explained in config/planning/profile.py."""

    settings: dict[str, Any]
    models: dict[str, dict[str, Any]]
    seconds: float
    bound: float


def parse_job(text: str) -> Job:
    """InputError when it is not what config prints, or not for this process."""
    try:
        job = Job(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise InputError(f"--job must be what `python -m config --timing-job` prints: {error}") from error
    usable = sorted(os.sched_getaffinity(0))
    others = sorted({cpu for slot in job.settings["slots"] for cpu in slot} - {*usable})
    if others:
        raise InputError(f"the job's CPUs must be of {usable}, which this process may use: got {others}")
    return job


def time_models(job: Job, *, store: Path, output: Path, workspaces: Path = WORKSPACES) -> None:
    """Time what was not timed before; `output` is whole after each model."""
    taken = {"schema": SCHEMA, "settings": job.settings, "versions": read_versions()}
    models = read_known(output, taken)
    for name in job.models:
        archive = store / f"{name}.mar"
        packed = read_built(archive)
        if packed is None:
            raise BuildError(f"no archive to time: {archive}; build it with: make models MODELS={name}")
        tried = Trial(packed=packed, job=job, workspaces=workspaces)
        models[name] = tried.time(models.get(name, {}))
        write_timings(output, {**taken, "models": models})


def read_versions() -> dict[str, str]:
    """Python's and those of the libraries that compute with every backend."""
    return {"python": platform.python_version(), **{name: version(name) for name in BUILD_DISTRIBUTIONS}}


def read_known(output: Path, taken: Mapping[str, Any]) -> dict[str, Any]:
    """The models of an earlier file, if all that it depends on is as now."""
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
        same = all(earlier[name] == value for name, value in taken.items())
        return dict(earlier["models"]) if same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_timings(output: Path, timings: Mapping[str, Any]) -> None:
    """Write beside the file and rename over it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    scratch = output.with_name(f".{output.name}.new")
    scratch.write_text(json.dumps(timings, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    scratch.replace(output)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One model that is timed."""

    packed: Packed
    job: Job
    workspaces: Path

    def time(self, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """The archive's id, and for each variant its timing or why there is none; those of other backends and
        precisions stay."""
        self._check_asked()
        found = dict(earlier["variants"]) if earlier.get("archive_id") == self.packed.archive_id else {}
        if obstacle := self._find_obstacle():
            found[self._variant] = {"problem": obstacle}
        elif self._is_timed(found.get(self._variant, {})):
            known = render_entry(found[self._variant])
            print(f"{self.name} {self._variant}: timed before on this machine: {known}", flush=True)
        else:
            found[self._variant] = self._measure()
        return {"archive_id": self.packed.archive_id, "variants": found}

    @property
    def name(self) -> str:
        """The model's."""
        return self.packed.definition.name

    @property
    def _known(self) -> Mapping[str, Variant]:
        return self.packed.definition.variants

    @property
    def _variant(self) -> str:
        return str(self.job.models[self.name]["variant"])

    @property
    def _batches(self) -> list[int]:
        return list(self.job.models[self.name]["batches"])

    def _is_timed(self, entry: Mapping[str, Any]) -> bool:
        """By the backend's version that is there, every size that is asked for, or that there was no time
        for."""
        sizes = {*entry.get("service", {}), *map(str, entry.get("skipped", ()))}
        same = entry.get("version", "") == read_version(self._variant)
        return "service" in entry and {*map(str, self._batches)} <= sizes and same

    def _check_asked(self) -> None:
        """What needs a build that asked for it must have had one."""
        backend, precision = self._variant.split()
        validated = self._variant in self._known
        if BACKENDS[backend].must_be_validated(precision) and not validated:
            raise BuildError(
                f"no build of {self.packed.path} was asked for {self._variant}; do: make models "
                f"MODELS={self.name} BACKEND={backend} PRECISION={precision}"
            )

    def _find_obstacle(self) -> str:
        """Known without trying: what became of it at the build; empty where it can be tried."""
        known = self._known.get(self._variant)
        if known and known.not_built:
            return f"not built: {known.not_built}"
        return f"rejected at build: {known.rejected}" if known and known.rejected else ""

    def _measure(self) -> dict[str, Any]:
        """In all workers' places at once."""
        what = f"{self.name} {self._variant}"
        print(f"{what}: timing in {describe_slots(self.job.settings['slots'])}", flush=True)
        with open_workspace(self.workspaces, f"{self.name}-timing") as staging:
            with zipfile.ZipFile(self.packed.path) as file:
                file.extractall(staging)
            with doing(f"{what}: timing batches of {', '.join(map(str, self._batches))}"):
                found = self._measure_unpacked(staging)
        print(f"  {what}: {render_entry(found)}", flush=True)
        return found

    def _measure_unpacked(self, staging: Path) -> dict[str, Any]:
        variant = self._variant
        command = [sys.executable, "-m", "models.timing", str(staging)]
        environment, slots = self._make_environment(variant), self.job.settings["slots"]
        try:
            with start_slots(command, slots=slots, environment=environment, cwd=ROOT) as running:
                timed = time_in_turns(running, self._batches, self.job.seconds, self.job.bound)
        except SlotError as error:
            problem = f"cannot be loaded here: {error}"
            if variant.split()[1] == BASELINE:
                raise BuildError(f"{self.name} {variant} {problem}") from error
            return {"problem": problem}
        facts = {
            "version": read_version(variant),
            "gate": self._describe_gate(variant),
            "skipped": [size for size in self._batches if size not in timed],
        }
        return make_entry(timed, facts)

    def _make_environment(self, variant: str) -> dict[str, str]:
        settings = self.job.settings
        kept = {n: value for n, value in os.environ.items() if not n.startswith(TUNING_PREFIXES)}
        backend, precision = variant.split()
        asked = {
            "backend": backend,
            "precision": precision,
            "threads": settings["threads"],
            "batch": max(self._batches),
            "off": settings["off"],
        }
        return {**kept, **settings["environment"], OPTIONS_VARIABLE: json.dumps({self.name: asked})}

    def _describe_gate(self, variant: str) -> str:
        """What the accuracy gate saw when the archive was built; nothing of what it compares with."""
        figures = self.packed.definition.find_accuracy(variant)
        return describe(Figures(**figures)) if figures else ""


def time_in_turns(
    running: Slots,
    sizes: Sequence[int],
    seconds: float,
    bound: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, Taken]:
    """Each size for so long in all, in rounds: a machine that drifts by a tenth within a minute must not make
    one size look dear beside another. The largest comes last, and none is begun that by the pace of a smaller
    one would not end within the bound; of a size that never was there is nothing."""
    began, pace = clock(), 0.0
    found: dict[int, list[Taken]] = {}
    for _ in range(ROUNDS):
        for size in sorted(sizes):
            batches = 1 if size in found else 2  # the first one is not counted
            if found and clock() - began + max(batches * pace * size, seconds / ROUNDS) > bound:
                break
            taken = running.time(size, seconds / ROUNDS)
            pace = statistics.median(taken.seconds) / size
            found.setdefault(size, []).append(taken)
    return {
        size: Taken(
            seconds=[second for one in rounds for second in one.seconds],
            busy=statistics.mean(one.busy for one in rounds),
        )
        for size, rounds in found.items()
    }


def read_version(variant: str) -> str:
    """Of the backend's own package; empty where it has none."""
    distribution = BACKENDS[variant.split()[0]].distribution
    return version(distribution) if distribution else ""


def make_entry(timed: Mapping[int, Taken], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one variant: by the size of batches what they took, in all places together."""
    service = {str(size): _summarize(taken) for size, taken in timed.items()}
    best = max(timed, key=lambda size: size / service[str(size)]["median_s"])
    speed = _round(best / service[str(best)]["median_s"])
    entry = {"samples_per_second": speed, "batch_size": best, "service": service}
    return entry | {name: value for name, value in facts.items() if value}


def _summarize(taken: Taken) -> dict[str, Any]:
    seconds = taken.seconds
    figures = {
        "lowest_s": min(seconds),
        "median_s": statistics.median(seconds),
        "p99_s": np.percentile(seconds, 99),
        "highest_s": max(seconds),
    }
    rounded = {name: _round(value) for name, value in {**figures, "busy": taken.busy}.items()}
    return {"batches": len(seconds), **rounded}


def describe_slots(slots: Sequence[Sequence[int]]) -> str:
    """Where the workers would be."""
    return f"{len(slots)} places at once, CPUs {' and '.join(','.join(map(str, slot)) for slot in slots)}"


def render_entry(entry: Mapping[str, Any]) -> str:
    """One timing as a person reads it."""
    if "problem" in entry:
        return str(entry["problem"])
    sizes = [f"{size} in {1000 * one['median_s']:.3g} ms" for size, one in entry["service"].items()]
    line = f"{entry['samples_per_second']:g} samples/s of a worker ({', '.join(sizes)})"
    busy = min(one.get("busy", 1.0) for one in entry["service"].values())
    return line if busy >= UNDISTURBED else f"{line}; DOUBTFUL: others took {1 - busy:.0%} of a CPU meanwhile"


def _round(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
