"""Times each precision of the archives a job names, unless it was timed before on this host.

The job is what `python -m config --timing-job` prints: the CPU to time on, how a worker would run, and the
batch size of each precision. The file of timings is what precision auto goes by.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from handlers.shared.options import IPEX_VARIABLE, OPTIONS_VARIABLE
from models.errors import BuildError, InputError
from models.fresh import BUILD_DISTRIBUTIONS, list_judged, read_archive_definition
from models.gate.figures import Figures
from models.gate.verdict import describe
from models.progress import doing
from models.request import BASELINE
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
SCHEMA = 1
DISTRIBUTIONS = ("intel_extension_for_pytorch", *BUILD_DISTRIBUTIONS)
TUNING_PREFIXES = (
    *("OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_", "MALLOC_", "TCMALLOC_", "TS_", "LD_"),
    *("PYTORCH_", "TORCH_", "IPEX_", "ATEN_", "PYTHON", "LRU_", "GLIBC_"),
)
"""Variables of a shell that would change the timing; a worker does not get them either."""
SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class Job:
    """What shall be timed; the fields are explained in config/timings.py."""

    cpu: int
    settings: dict[str, Any]
    models: dict[str, dict[str, Any]]


def parse_job(text: str) -> Job:
    """InputError when it is not what config prints, or not for this process."""
    try:
        job = Job(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise InputError(f"--job must be what `python -m config --timing-job` prints: {error}") from error
    usable = sorted(os.sched_getaffinity(0))
    if job.cpu not in usable:
        raise InputError(f"the job's cpu must be one of {usable}, which this process may use: got {job.cpu}")
    return job


def time_models(job: Job, *, store: Path, output: Path, workspaces: Path = WORKSPACES) -> None:
    """Time what was not timed before; `output` is whole after each model."""
    taken = {"schema": SCHEMA, "settings": job.settings, "versions": read_versions()}
    models = read_known(output, taken)
    for name in job.models:
        archive = store / f"{name}.mar"
        definition = read_archive_definition(archive)
        if definition is None:
            raise BuildError(f"no archive to time: {archive}; build it with: make models MODELS={name}")
        tried = Trial(name=name, archive=archive, definition=definition, job=job, workspaces=workspaces)
        models[name] = tried.time_precisions(models.get(name, {}))
        write_timings(output, {**taken, "models": models})


def read_versions() -> dict[str, str]:
    """Python's and those of the libraries that compute."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # IPEX need not be there: FP32 and BF16 can do without
            continue
    return found


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

    name: str
    archive: Path
    definition: dict[str, Any]
    job: Job
    workspaces: Path

    def time_precisions(self, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """The archive's id, and for each precision its timing or why there is none."""
        self._check_asked()
        found = self._list_obstacles()
        sizes = {name: size for name, size in self._sizes.items() if name not in found}
        if earlier.get("archive_id") == self.definition["id"]:
            found |= {
                name: entry
                for name, entry in earlier["precisions"].items()
                if "samples_per_second" in entry and entry["batch_size"] == sizes.get(name)
            }
        missing = {name: size for name, size in sizes.items() if name not in found}
        if missing:
            found |= self._measure(missing)
        else:
            print(f"{self.name}: timed before on this host: {render_speeds(found)}", flush=True)
        return {"archive_id": self.definition["id"], "precisions": found}

    @property
    def _sizes(self) -> dict[str, int]:
        return dict(self.job.models[self.name]["batch_sizes"])

    def _check_asked(self) -> None:
        """Auto chooses among all that there are: one that was never judged must not be passed over."""
        unasked = {*self._sizes} - {BASELINE, *list_judged(self.definition)}
        if unasked:
            raise BuildError(
                f"no build of {self.archive} was asked for {', '.join(sorted(unasked))}; "
                f"do: make models MODELS={self.name} PRECISION=auto"
            )

    def _list_obstacles(self) -> dict[str, Any]:
        """Known without trying: what this machine lacks, and what the archive's accuracy gate refused."""
        found = {p: {"problem": why} for p, why in self.job.models[self.name]["impossible"].items()}
        refused = {p: f"refused at build: {why}" for p, why in self.definition["refused"].items()}
        lacking = {p: f"not built: {one['cause']}" for p, one in self.definition["not_built"].items()}
        problems = {**refused, **lacking}
        return found | {p: {"problem": problems[p]} for p in self._sizes if p in problems}

    def _measure(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Each in a process of its own, one after the other."""
        print(f"{self.name}: timing {', '.join(sizes)} on CPU {self.job.cpu}", flush=True)
        found = {}
        with open_workspace(self.workspaces, f"{self.name}-timing") as staging:
            with zipfile.ZipFile(self.archive) as file:
                file.extractall(staging)
            for precision, size in sizes.items():
                with doing(f"{self.name} {precision}: timing batches of {size}"):
                    found[precision] = self._measure_one(staging, precision, size)
                print(f"  {self.name} {precision}: {render_entry(found[precision])}", flush=True)
        return found

    def _measure_one(self, staging: Path, precision: str, size: int) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "models.timing", str(staging), str(size)],
            cwd=ROOT,
            env=self._make_environment(precision),
            # From its first instruction on: OpenMP and jemalloc count the CPUs when they are loaded.
            preexec_fn=lambda: os.sched_setaffinity(0, {self.job.cpu}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return make_entry(json.loads(done.stdout.splitlines()[-1]), size, self._describe_gate(precision))
        problem = f"cannot be loaded here: {_find_cause(done)}"
        if precision == BASELINE:
            raise BuildError(f"{self.name} {precision} {problem}")
        return {"problem": problem}

    def _make_environment(self, precision: str) -> dict[str, str]:
        settings = self.job.settings
        kept = {n: value for n, value in os.environ.items() if not n.startswith(TUNING_PREFIXES)}
        options = {self.name: {"precision": precision, "threads": 1, "off": settings["off"]}}
        own = {OPTIONS_VARIABLE: json.dumps(options), IPEX_VARIABLE: str(settings["ipex"]).lower()}
        return {**kept, **settings["environment"], **own}

    def _describe_gate(self, precision: str) -> str | None:
        """What the accuracy gate saw when the archive was built; None for the precision it compares with."""
        figures = self.definition["accuracy"].get(precision)
        if figures is None:
            return None
        return describe(Figures(**figures))


def make_entry(timing: Mapping[str, Any], batch_size: int, gate: str | None) -> dict[str, Any]:
    """What is kept of one timing."""
    speed = _round(batch_size / timing["median_s"])
    seconds = {name: _round(timing[name]) for name in ("lowest_s", "median_s", "highest_s")}
    entry = {"samples_per_second": speed, "batch_size": batch_size, "batches": timing["batches"], **seconds}
    return {**entry, "gate": gate} if gate else entry


def render_entry(entry: Mapping[str, Any]) -> str:
    """One timing as a person reads it."""
    if "problem" in entry:
        return str(entry["problem"])
    return (
        f"{entry['samples_per_second']:g} samples/s on one core (batch {entry['batch_size']}, "
        f"{entry['batches']} batches {entry['lowest_s']:g}-{entry['highest_s']:g} s)"
    )


def render_speeds(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """All of one model in a line."""
    speeds = [f"{name} {e['samples_per_second']:g}" for name, e in entries.items() if "problem" not in e]
    problems = [f"; {name}: {entry['problem']}" for name, entry in entries.items() if "problem" in entry]
    return f"{', '.join(speeds)} samples/s on one core{''.join(problems)}"


def _round(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


def _find_cause(done: subprocess.CompletedProcess[str]) -> str:
    """IPEX can end a process without an exception; then the last line it wrote has to do."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"it ended with code {done.returncode}"])[-1]
