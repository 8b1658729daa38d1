"""Starts a server: what its supervisor needs, the supervisor, and the wait until it is ready, or has failed
and nothing of it is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from config.plan import Plan
from config.terminal import Report, read_message
from server.archives import read_archives
from server.errors import ServerError
from server.launch import inherit, prepare_folders, spawn
from server.notify import SOCKET as NOTIFY_SOCKET
from server.ports import check_ports_free, list_ports
from server.ready import StartFailed
from server.rundir import MARK, RunDir
from server.state import Failure, Phase, begin_state, read_failure, read_record, write_state
from server.stop import stop
from server.supervisor.proxy import check_configuration
from server.tokens import prepare_secrets

POLL_S = 0.2
CHECKOUT = Path(__file__).resolve().parent.parent
STOPPED = Failure(cause="stopped by another command (make stop) while it was starting")


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """A signal asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def find_signals() -> list[signal.Signals]:
    """Those that ask for the end. nohup asks to go on without the terminal by ignoring SIGHUP."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def catch_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into Interrupted, so that what was started is stopped."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for wanted in before:
            signal.signal(wanted, signal.SIG_IGN)  # a second Ctrl-C must not cut the orderly stop short
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in find_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(run: RunDir, plan: Plan, report: Report) -> subprocess.Popen[bytes]:
    """Start it and wait until every worker of every instance serves; its supervisor. `plan` is what was
    written to the run directory. Whatever ends the start leaves no process; failure.json has the cause."""
    archives = read_archives(plan)
    check_ports_free(list_ports(plan))  # each instance checks its own, and its archives
    run.failure.unlink(missing_ok=True)
    prepare_folders(run)
    shutil.rmtree(run.metrics, ignore_errors=True)
    prepare_secrets(run, plan)
    try:
        check_configuration(run, plan, run.proxy_config)
        state = begin_state(plan, archives, run.proxy_config)
        write_state(run.state, state)
        began = time.monotonic()
        process = _launch(run)
        with follow(run.supervisor_log, report) as read_lines:
            while not _is_ready(run, process):
                time.sleep(POLL_S)
                read_lines()
        seconds = round(time.monotonic() - began, 1)
        write_state(run.state, dataclasses.replace(state, phase=Phase.READY, seconds_to_ready=seconds))
        return process
    except BaseException as problem:
        if isinstance(problem, StartFailed):
            write_state(run.failure, problem.failure)
        report(stop(run).describe())
        raise


def _is_ready(run: RunDir, process: subprocess.Popen[bytes]) -> bool:
    """StartFailed with the cause where it never will be."""
    if not run.state.exists():  # a stop that came before the supervisor had its mark found nothing to end
        raise StartFailed(STOPPED)
    record = read_record(run.record)
    if process.poll() is not None:
        said = f": {record.message}" if record and record.message else ""
        cause = f"the supervisor ended with status {process.returncode}{said}"
        raise StartFailed(read_failure(run.failure) or Failure(cause=cause, log=str(run.supervisor_log)))
    return bool(record and record.pid == process.pid and record.phase == Phase.READY)


def _launch(run: RunDir) -> subprocess.Popen[bytes]:
    """The supervisor, with its mark; it prints to logs/supervisor.log."""
    systemd = {name: value for name, value in os.environ.items() if name == NOTIFY_SOCKET}
    own = {MARK: str(run.path), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    environment = {**inherit(os.environ), **systemd, **own}
    command = [sys.executable, "-m", "server", "supervise", f"RUN_DIR={run.path}"]
    return spawn(command, CHECKOUT, environment, run.supervisor_log)


@contextlib.contextmanager
def follow(log: Path, report: Report, *, told: int = 0) -> Iterator[Callable[[], None]]:
    """A function that reports the messages of what was added to a log since it was called last; the rest at
    the end. Its first `told` bytes are known."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(told)

        def read_lines() -> None:
            if os.fstat(file.fileno()).st_size < file.tell():  # it was moved to another file (logs.limit_log)
                file.seek(0)
            while line := file.readline():
                report(read_message(line.rstrip("\n")))

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
