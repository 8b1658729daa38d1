"""The in-process reference: a built archive's handler at full speed, with nothing of a server around it.

It is the limit of what REST can reach: as many processes as the plan has workers, on the same CPUs, with the
same environment, batches and bodies. Memory is not bound to a NUMA node by name as the launcher's numactl
does it; a pinned process gets its node's memory by first touch anyway.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.plan import Plan
from loadtest.errors import LoadTestError
from loadtest.payloads import read_list, shuffle_endlessly
from server.launch import make_allocator_link, prepare_folders, remove_temporary, render_environment
from server.rundir import RunDir

WORKER = Path(__file__).with_name("inprocess_worker.py")
LOAD_SECONDS = 300
END_SECONDS = 10
SHOWN_LOG = 1500
"""Characters of a log's end in an error."""
ORDER_REQUESTS = 8192
"""Requests before the order repeats; a multiple of all batch sizes."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement of one process."""

    requests: int
    seconds: float
    batch_seconds: tuple[float, ...]
    """Time of each call of handle()."""
    model_seconds: float
    """Of these, inside the model; the rest is decoding, packing and answering."""
    cpu_seconds: float


def total_rate(runs: Sequence[Run]) -> float:
    """Requests per second of all processes together."""
    return sum(run.requests / run.seconds for run in runs)


def model_share(runs: Sequence[Run]) -> float:
    """The part of the time that was spent inside the model."""
    return sum(run.model_seconds for run in runs) / sum(run.seconds for run in runs)


@dataclass(frozen=True, kw_only=True)
class Child:
    """One process of the reference."""

    process: subprocess.Popen[str]
    log: Path
    """Its standard error, and what libraries print."""

    def send(self, line: str) -> None:
        """A line to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it ended is seen when it does not answer
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Its next answer; LoadTestError when it has ended or says that something is wrong."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text(encoding="utf-8", errors="replace")[-SHOWN_LOG:]
            raise LoadTestError(f"a process of the in-process reference ended:\n{said}")
        answer = dict(json.loads(line))
        if "error" in answer:
            raise LoadTestError(f"the in-process reference: {answer['error']}")
        return answer


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Loaded processes that wait for the word; waiting costs no CPU."""

    name: str
    run: RunDir
    """Its path marks the processes."""
    plan: Plan
    described: tuple[dict[str, Any], ...]
    """Each process's own account, as a worker gives it to describe."""
    children: tuple[Child, ...]

    def measure(self, seconds: float) -> list[Run]:
        """All processes at the same time."""
        for child in self.children:
            child.send(f"measure {seconds}\n")
        return [_parse_run(answer) for answer in _listen(self.children, seconds + LOAD_SECONDS)]


@contextlib.contextmanager
def in_process_reference(
    name: str, folder: Path, *, plan: Plan, model: str, payloads: Path
) -> Iterator[Reference]:
    """Start the processes for one model of a plan, and end them."""
    run = RunDir.at(folder)
    run.path.mkdir(parents=True, exist_ok=True)
    prepare_folders(run)
    make_allocator_link(plan)
    directory = _unpack(Path(plan.inputs.model_store) / str(plan.models[model].archive.value), run)
    children: list[Child] = []
    try:
        for rank in range(int(plan.models[model].workers.value)):
            job = _write_job(run, plan, model, payloads, directory, rank)
            children.append(_start(plan, run, job, rank))
        described = tuple(_listen(children, LOAD_SECONDS))
        check_described(plan, model, described)
        yield Reference(name=name, run=run, plan=plan, described=described, children=tuple(children))
    finally:
        _end(children)
        remove_temporary(run)


def _unpack(archive: Path, run: RunDir) -> Path:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(run.temporary / "archive")
    return run.temporary / "archive"


def _write_job(run: RunDir, plan: Plan, model: str, payloads: Path, directory: Path, rank: int) -> Path:
    bodies = read_list(payloads)
    job = {
        "model": model,
        "directory": str(directory),
        "batch_size": plan.models[model].batch_size.value,
        "payloads": [{"file": str(payloads / one.file), "content_type": one.content_type} for one in bodies],
        "order": list(itertools.islice(shuffle_endlessly(len(bodies), seed=rank), ORDER_REQUESTS)),
    }
    file = run.path / f"job-{rank}.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    return file


def render_worker_environment(plan: Plan, run: RunDir) -> dict[str, str]:
    """What a planned worker has: TorchServe's environment, and what launcher and TorchServe add."""
    environment = render_environment(plan, run, os.environ)
    for name, setting in plan.worker_environment.items():
        environment[name] = ":".join(setting.value) if isinstance(setting.value, list) else str(setting.value)
    environment["TS_IPEX_ENABLE"] = str(plan.properties["ipex_enable"].value)
    return environment


def _start(plan: Plan, run: RunDir, job: Path, rank: int) -> Child:
    cpus = ",".join(str(cpu) for cpu in plan.layout.worker_cpus.value[rank])
    python = Path(plan.inputs.prefix) / "bin" / "python"
    # taskset(1), as the launcher does it: the allocator counts its CPUs before Python runs.
    command = ["taskset", "-c", cpus, str(python), str(WORKER), str(job)]
    log = run.logs / f"reference-{rank}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=run.temporary / "archive",
            env=render_worker_environment(plan, run),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    return Child(process=process, log=log)


def _listen(children: Sequence[Child], seconds: float) -> list[dict[str, Any]]:
    """One answer of each; all are ended when one takes too long."""
    with ThreadPoolExecutor(len(children)) as pool:
        waiting = [pool.submit(child.read) for child in children]
        try:
            return [one.result(timeout=seconds) for one in waiting]
        except LateError as problem:
            _end(children)
            raise LoadTestError(f"the in-process reference gave no answer for {seconds:.0f} s") from problem


def _parse_run(answer: dict[str, Any]) -> Run:
    return Run(**{**answer, "batch_seconds": tuple(answer["batch_seconds"])})


def check_described(plan: Plan, model: str, described: Sequence[dict[str, Any]]) -> None:
    """A reference without the plan's settings would be no limit: each must be seen in the live process."""
    wanted = {
        "precision": plan.models[model].precision.value,
        "threads": plan.layout.cores_per_worker.value,
        "allocator": plan.libraries.allocator.value,
        "openmp": plan.libraries.openmp.value,
    }
    for one in described:
        got = {
            "precision": one["precision"],
            "threads": one["threads"]["intra_op"],
            "allocator": one["allocator"]["name"],
            "openmp": one["openmp"]["name"],
        }
        if got != wanted:
            raise LoadTestError(f"the in-process reference must have {wanted}: got {got}")


def _end(children: Sequence[Child]) -> None:
    for child in children:
        with contextlib.suppress(OSError):
            assert child.process.stdin is not None
            child.process.stdin.close()
    for child in children:
        try:
            child.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
