"""Starts a server with a door: what its supervisor needs, the supervisor, and the wait until it is ready."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from config.plan import Plan, read_plan
from server.archives import Archive, check_precisions, read_archives
from server.call import read_instances
from server.contents import check_packed
from server.errors import ServerError
from server.launch import PRIVATE_UMASK, check_machine, is_inherited, prepare_folders
from server.notify import SOCKET as NOTIFY_SOCKET
from server.ports import check_ports_free
from server.progress import Report, ignore
from server.ready import StartFailed
from server.rundir import MARK, RunDir
from server.running import digest_plan, identify_archives
from server.state import READY, STARTING, Failure, State, read_failure, write_state
from server.stop import stop
from server.supervisor.door import check_configuration
from server.supervisor.record import READY as PHASE_READY
from server.supervisor.record import Record, read_record
from server.tokens import prepare_secrets
from server.verify.door import digest_door

POLL_S = 0.2
CHECKOUT = Path(__file__).resolve().parent.parent


def start_site(
    run: RunDir, model_store: Path, report: Report, _tick: Report = ignore
) -> subprocess.Popen[bytes]:
    """Start it and wait until every worker of every instance serves; nothing is left where that fails."""
    plan = read_plan(run.plan)
    archives = read_archives(plan, model_store)
    _check(run, plan, archives)
    run.failure.unlink(missing_ok=True)
    prepare_folders(run)
    prepare_secrets(run, plan)
    try:
        check_configuration(run, plan, run.door)
        return _start_and_wait(run, model_store, archives, report)
    except BaseException as problem:
        report(stop(run).describe())
        if isinstance(problem, StartFailed):
            write_state(run.failure, problem.failure)
        raise


def _check(run: RunDir, plan: Plan, archives: Mapping[str, Archive]) -> None:
    """What can be told before anything is started."""
    check_precisions(plan, archives)
    check_packed(archives.values())
    check_ports_free(plan.properties)
    for _, own in read_instances(run, plan).values():
        check_machine(own)
        check_ports_free(own.properties)


def _start_and_wait(
    run: RunDir, model_store: Path, archives: Mapping[str, Archive], report: Report
) -> subprocess.Popen[bytes]:
    state = State(
        phase=STARTING,
        plan_sha256=digest_plan(run),
        properties_sha256=digest_door(run),
        archives=identify_archives(archives),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    write_state(run.state, state)
    began = time.monotonic()
    process = _launch(run, model_store)
    with follow(run.supervisor_log, report) as read_lines:
        while not _is_ready(run, process):
            time.sleep(POLL_S)
            read_lines()
    seconds = round(time.monotonic() - began, 1)
    write_state(run.state, dataclasses.replace(state, phase=READY, seconds_to_ready=seconds))
    return process


def _is_ready(run: RunDir, process: subprocess.Popen[bytes]) -> bool:
    """StartFailed with the cause where it never will be."""
    if not run.state.exists():
        raise StartFailed(Failure(cause="stopped from elsewhere (make stop) while it was starting"))
    record = read_record(run.record)
    if process.poll() is not None:
        raise StartFailed(read_failure(run.failure) or _explain_death(run, process.returncode, record))
    return bool(record and record.pid == process.pid and record.phase == PHASE_READY)


def _explain_death(run: RunDir, code: int, record: Record | None) -> Failure:
    said = f": {record.message}" if record and record.message else ""
    return Failure(cause=f"the supervisor ended with status {code}{said}", log=str(run.supervisor_log))


def _launch(run: RunDir, model_store: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, with its mark; what it and the starts print goes to logs/supervisor.log."""
    command = [sys.executable, "-m", "server", "supervise", "--run-dir", str(run.path)]
    kept = {name: value for name, value in os.environ.items() if is_inherited(name) or name == NOTIFY_SOCKET}
    with run.supervisor_log.open("ab") as log:
        return subprocess.Popen(
            [*command, "--model-store", str(model_store)],
            cwd=CHECKOUT,
            env={**kept, MARK: str(run.path), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=PRIVATE_UMASK,
        )


@contextmanager
def follow(log: Path, report: Report, *, told: int = 0) -> Iterator[Callable[[], None]]:
    """A function that reports what was added to a log since it was called last; the rest at the end.

    Its first `told` bytes are known.
    """
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(told)

        def read_lines() -> None:
            for line in file:
                report(line.rstrip("\n"))

        try:
            yield read_lines
        finally:
            read_lines()


def count_told(log: Path) -> int:
    """What it holds now; 0 where there is none."""
    return log.stat().st_size if log.exists() else 0


def stay_with_site(process: subprocess.Popen[bytes], run: RunDir, report: Report, told: int) -> int:
    """Stay until the supervisor ends; its exit status. The start has told so much of its log."""
    with follow(run.supervisor_log, report, told=told) as read_lines:
        while process.poll() is None:
            time.sleep(POLL_S)
            read_lines()
    if run.state.exists() and process.returncode:
        raise ServerError(f"the supervisor ended with status {process.returncode}: {run.supervisor_log}")
    return 0
