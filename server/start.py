"""Starts a server: what its supervisor needs, the supervisor, and the wait until it is ready, or has failed
and nothing of it is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from config.plan import Plan, read_plan
from config.terminal import Report
from server.archives import check_packed, check_precisions, read_archives
from server.call import read_instances
from server.errors import ServerError
from server.launch import PRIVATE_UMASK, check_machine, is_inherited, prepare_folders
from server.notify import SOCKET as NOTIFY_SOCKET
from server.ports import check_ports_free
from server.ready import StartFailed
from server.rundir import MARK, RunDir
from server.running import digest_file, digest_plan, identify_archives
from server.state import READY, STARTING, Failure, State, read_failure, write_state
from server.stop import stop
from server.supervisor.door import check_configuration
from server.supervisor.record import READY as PHASE_READY
from server.supervisor.record import read_record
from server.tokens import prepare_secrets

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed

POLL_S = 0.2
CHECKOUT = Path(__file__).resolve().parent.parent
STOPPED = Failure(cause="stopped from elsewhere (make stop) while it was starting")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """A signal asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def catch_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into Interrupted, so that what was started is stopped."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for ignored in before:
            signal.signal(ignored, signal.SIG_IGN)  # a second Ctrl-C must not cut the orderly stop short
        raise Interrupted(number)

    # nohup asks to go on without the terminal by ignoring SIGHUP.
    wanted = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_where_it_fails(run: RunDir, report: Report) -> Iterator[None]:
    """Whatever ends a start leaves no process behind; of StartFailed the cause is kept in failure.json."""
    try:
        yield
    except BaseException as problem:
        if isinstance(problem, StartFailed):
            write_state(run.failure, problem.failure)
        report(stop(run).describe())
        raise


def begin_state(run: RunDir, configuration: Path, archives: Mapping[str, Packed]) -> State:
    """What is known of a start before anything runs."""
    return State(
        phase=STARTING,
        plan_sha256=digest_plan(run),
        properties_sha256=digest_file(configuration),
        archives=identify_archives(archives),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def start(run: RunDir, model_store: Path, report: Report) -> subprocess.Popen[bytes]:
    """Start it and wait until every worker of every instance serves; its supervisor."""
    plan = read_plan(run.plan)
    archives = read_archives(plan, model_store)
    _check(run, plan, archives)
    run.failure.unlink(missing_ok=True)
    prepare_folders(run)
    prepare_secrets(run, plan)
    with stop_where_it_fails(run, report):
        check_configuration(run, plan, run.door)
        state = begin_state(run, run.door, archives)
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


def _check(run: RunDir, plan: Plan, archives: Mapping[str, Packed]) -> None:
    """What can be told before anything is started."""
    check_precisions(plan, archives)
    check_packed(archives.values())
    check_ports_free(plan.properties)
    for _, own in read_instances(run, plan).values():
        check_machine(own)
        check_ports_free(own.properties)


def _is_ready(run: RunDir, process: subprocess.Popen[bytes]) -> bool:
    """StartFailed with the cause where it never will be."""
    if not run.state.exists():
        raise StartFailed(STOPPED)
    record = read_record(run.record)
    if process.poll() is not None:
        said = f": {record.message}" if record and record.message else ""
        cause = f"the supervisor ended with status {process.returncode}{said}"
        raise StartFailed(read_failure(run.failure) or Failure(cause=cause, log=str(run.supervisor_log)))
    return bool(record and record.pid == process.pid and record.phase == PHASE_READY)


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


@contextlib.contextmanager
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


def stay(process: subprocess.Popen[bytes], run: RunDir, report: Report, told: int) -> int:
    """Stay until the supervisor ends; its exit status. The start has told so much of its log."""
    with follow(run.supervisor_log, report, told=told) as read_lines:
        while process.poll() is None:
            time.sleep(POLL_S)
            read_lines()
    if run.state.exists() and process.returncode:
        raise ServerError(f"the supervisor ended with status {process.returncode}: {run.supervisor_log}")
    return 0
