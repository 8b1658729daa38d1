"""Starts a run directory's server and waits until it is ready, or has failed and nothing of it is left."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

from config.plan import Plan, read_plan
from server.archives import Archive, check_precisions, read_archives
from server.call import make_client
from server.configuration import read_configuration
from server.contents import check_packed
from server.failures import Watcher, explain_server_death, read_log, read_oom_kills
from server.launch import check_machine, launch, make_allocator_link, prepare_folders
from server.ports import check_ports_free
from server.progress import Report, ignore
from server.ready import StartFailed, Surroundings, wait_until_ready
from server.rundir import RunDir
from server.running import digest_plan, digest_properties, identify_archives
from server.state import READY, STARTING, Failure, State, write_state
from server.stop import stop
from server.throttling import read_throttled

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WATCH_SECONDS = 0.5


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


def start(run: RunDir, model_store: Path, report: Report, tick: Report = ignore) -> subprocess.Popen[bytes]:
    """Start and wait; StartFailed (saved to failure.json) or Interrupted leave no process behind."""
    plan = read_plan(run.plan)
    archives = read_archives(plan, model_store)
    check_precisions(plan, archives)
    check_packed(archives.values())
    check_machine(plan)
    check_ports_free(plan.properties)
    run.failure.unlink(missing_ok=True)
    link = make_allocator_link(plan)
    if link:
        report(link)
    prepare_folders(run)
    try:
        return _start_and_wait(plan, run, model_store, archives, report, tick)
    except StartFailed as problem:
        write_state(run.failure, problem.failure)
        report(stop(run).describe())
        raise
    except BaseException:
        report(stop(run).describe())
        raise


def _start_and_wait(
    plan: Plan, run: RunDir, model_store: Path, archives: dict[str, Archive], report: Report, tick: Report
) -> subprocess.Popen[bytes]:
    state = _begin(run, archives)
    began = time.monotonic()
    watcher = Watcher(run=run, oom_kills_before=read_oom_kills())
    write_state(run.state, state)
    process = launch(plan, run, model_store)
    around = Surroundings(
        client=make_client(plan, run),
        find_failure=watcher.find,
        find_death=lambda: find_death(process, run),
        report=report,
        tick=tick,
    )
    wait_until_ready(plan, archives, around)
    write_state(run.state, _finish(state, run, time.monotonic() - began))
    return process


def _begin(run: RunDir, archives: dict[str, Archive]) -> State:
    return State(
        phase=STARTING,
        plan_sha256=digest_plan(run),
        properties_sha256=digest_properties(run),
        archives=identify_archives(archives),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        throttled_at_start=read_throttled(),
    )


def _finish(state: State, run: RunDir, seconds: float) -> State:
    return dataclasses.replace(
        state,
        phase=READY,
        configuration=read_configuration(run.server_log),
        seconds_to_ready=round(seconds, 1),
        throttled_when_ready=read_throttled(),
    )


def find_death(process: subprocess.Popen[bytes], run: RunDir) -> Failure | None:
    """Why TorchServe ended or shall end; None while it runs.

    A stop that came before TorchServe carried its mark found nothing to end, but it took server.json away.
    """
    if not run.state.exists():
        return Failure(cause="stopped from elsewhere (make stop) while it was starting")
    if process.poll() is None:
        return None
    return _explain_death(run)


def _explain_death(run: RunDir) -> Failure:
    return explain_server_death(read_log(run.console_log), str(run.console_log), read_log(run.server_log))


def stay(process: subprocess.Popen[bytes], run: RunDir, report: Report) -> int:
    """Stay with a ready server until it was stopped from elsewhere (0) or died (1)."""
    while process.poll() is None:
        time.sleep(_WATCH_SECONDS)
    if not run.state.exists():
        report("stopped from elsewhere")
        return 0
    failure = _explain_death(run)
    write_state(run.failure, failure)
    report(f"{failure.cause} (log: {failure.log})")
    stop(run)
    return 1
