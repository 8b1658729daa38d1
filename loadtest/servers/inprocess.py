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
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from config.plan import InstancePlan, Plan
from loadtest.drivers import COOL_DOWN_S, Outcome
from loadtest.errors import LoadTestError
from loadtest.load import Load
from loadtest.payloads import Payload, write_manifest
from loadtest.rows import make_rows, merge_rows
from loadtest.schedule import order_payloads
from loadtest.servers.base import Running, Server, Testbed, make_running
from loadtest.servers.kit import write_plan
from server.launch import make_allocator_link, prepare_folders, remove_temporary, render_environment
from server.rundir import RunDir

WORKER = Path(__file__).with_name("inprocess_worker.py")
LOAD_SECONDS = 300
END_SECONDS = 10
SHOWN_LOG = 1500
"""Characters of a log's end in an error."""
ORDER_REQUESTS = 8192
"""Requests before a drawn order repeats."""


def in_process_server(name: str, model: str, arguments: Sequence[str]) -> Server:
    """The handler planned with settings (NAME=VALUE), loaded in as many processes as workers."""

    @contextlib.contextmanager
    def start(testbed: Testbed) -> Iterator[Running]:
        testbed.say(f"  starting {name}")
        folder, port = testbed.place("in-process")
        asked = [*arguments, f"MODEL_STORE={testbed.store}"]
        plan = write_plan(folder, port=port, models=[model], arguments=asked)
        how = f"without a server: {' '.join(arguments)}"
        with run_in_process(name, RunDir.at(folder), plan, model) as running:
            yield replace(running, how=how)

    return Server(name=name, open=start)


@contextlib.contextmanager
def run_in_process(name: str, run: RunDir, plan: Plan, model: str) -> Iterator[Running]:
    """Start the processes for one model of a plan's only instance, and end them."""
    prepare_folders(run)
    make_allocator_link(plan)
    running = make_running(name, run, plan, how="without a server")
    job = _prepare(running.archives[model], run, plan, model)
    environment = render_worker_environment(plan, run)
    children: list[Child] = []
    try:
        for rank in range(plan.models[model].workers):
            children.append(_start(plan, run, job, rank, environment))
        check_described(plan, model, _listen(children, LOAD_SECONDS))
        yield replace(running, url="", runner=InProcess(children=tuple(children)))
    finally:
        running.resume()
        _end(children)
        remove_temporary(run)


@dataclass(frozen=True, kw_only=True)
class Child:
    """One process of the reference."""

    process: subprocess.Popen[str]
    log: Path
    """Its standard error, and what libraries print."""

    def send(self, order: dict[str, Any]) -> None:
        """What to do, on its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it ended is seen when it does not answer
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Its next answer; LoadTestError when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text(encoding="utf-8", errors="replace")[-SHOWN_LOG:]
            raise LoadTestError(f"a process of the in-process reference ended:\n{said}")
        return dict(json.loads(line))


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """Loaded processes that wait for the word; waiting costs no CPU."""

    children: tuple[Child, ...]

    def run(self, load: Load, payloads: list[Payload], folder: Path) -> Outcome:
        """All processes at the same time, each at full speed: the number of users is of no meaning here."""
        if load.is_open:
            raise LoadTestError("a handler without a server runs closed loops: got a rate")
        zero, wall_zero = time.monotonic() + load.warm_up_s, time.time() + load.warm_up_s
        end = zero + load.duration_s + COOL_DOWN_S
        write_manifest(payloads, folder)
        files = [str(folder / f"{number:04d}.body") for number in range(len(payloads))]
        for rank, child in enumerate(self.children):
            # As the users of a driver's process would send them.
            each = range(len(payloads))
            drawn = itertools.islice(order_payloads(len(each), seed=load.seed + rank), ORDER_REQUESTS)
            numbers = list(each if load.in_order else drawn)
            child.send({"files": files, "numbers": numbers, "zero": zero, "end": end})
        answers = _listen(self.children, load.warm_up_s + load.duration_s + COOL_DOWN_S + LOAD_SECONDS)
        seconds = sum(one["seconds"] for one in answers)
        rows, texts = merge_rows(
            [
                (make_rows([(payload, None, *rest) for payload, *rest in one["rows"]]), one["answers"])
                for one in answers
            ]
        )
        in_model = sum(one["model_seconds"] for one in answers)
        return Outcome(rows=rows, answers=texts, wall_zero=wall_zero, model_share=in_model / seconds)


def _prepare(archive: Path, run: RunDir, plan: Plan, model: str) -> Path:
    """Unpack the archive; the file with what each process must know to load it."""
    directory = run.temporary / "archive"
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(directory)
    job = {"model": model, "directory": str(directory), "batch_size": plan.models[model].batch_size}
    file = run.path / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    return file


def find_instance(plan: Plan) -> InstancePlan:
    """The only one: the reference is planned with INSTANCES=1."""
    (instance,) = plan.instances.values()
    return instance


def render_worker_environment(plan: Plan, run: RunDir) -> dict[str, str]:
    """What a planned worker has: TorchServe's environment, and what launcher and TorchServe add."""
    (name,) = plan.instances
    environment = render_environment(plan, name, run, os.environ)
    for variable, value in plan.instances[name].worker_environment.items():
        environment[variable] = value if isinstance(value, str) else ":".join(value)
    return environment


def _start(plan: Plan, run: RunDir, job: Path, rank: int, environment: Mapping[str, str]) -> Child:
    cpus = ",".join(map(str, find_instance(plan).worker_cpus[rank]))
    python = Path(plan.prefix) / "bin" / "python"
    # taskset(1), as the launcher does it: the allocator counts its CPUs before Python runs.
    command = ["taskset", "-c", cpus, str(python), str(WORKER), str(job)]
    log = run.logs / f"reference-{rank}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=run.temporary / "archive",
            env=dict(environment),
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


def check_described(plan: Plan, model: str, described: Sequence[dict[str, Any]]) -> None:
    """A reference without the plan's settings would be no limit: each must be seen in the live process."""
    libraries, threads = plan.libraries, find_instance(plan).cores_per_worker
    names = ("precision", "threads", "allocator", "openmp")
    values = (plan.models[model].precision, threads, libraries.allocator, libraries.openmp)
    wanted = dict(zip(names, values, strict=True))
    for one in described:
        told = (one["precision"], one["threads"]["intra_op"], one["allocator"]["name"], one["openmp"]["name"])
        got = dict(zip(names, told, strict=True))
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
