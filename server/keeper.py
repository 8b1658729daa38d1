"""Starts one TorchServe, verifies it, and stays with it: a process of its own, the keeper."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from pathlib import Path

from config.folders import hold_lock
from config.plan import Plan, read_plan
from config.terminal import Report, say
from server import verify
from server.archives import check_packed, check_precisions, read_archives
from server.call import make_instance_client
from server.health import Health, keep_health
from server.launch import check_machine, confine, launch, make_allocator_link, prepare_folders
from server.logs import Watcher, explain_server_death, read_configuration, read_log, read_oom_kills
from server.ports import check_ports_free
from server.ready import StartFailed, Surroundings, wait_until_ready
from server.rundir import RunDir
from server.start import STOPPED, Interrupted, begin_state, stop_where_it_fails
from server.state import READY, Failure, write_state
from server.status import render_failure
from server.stop import stop
from server.throttling import read_throttled

_WATCH_SECONDS = 0.5


def keep_instance(run: RunDir, model_store: Path) -> int:
    """Until a signal ends it (0), or TorchServe ends, does not start, or is not as asked for (1)."""
    name = run.path.name

    def report(line: str) -> None:
        say(f"{name}: {line}")

    plan = read_plan(run.plan)
    confine(plan)
    try:
        with hold_lock(run.path):
            stop(run)
            process = start_torchserve(plan, run, model_store, report)
        _check(plan, run, model_store)
        archives, client = read_archives(plan, model_store), make_instance_client(plan)
        with keep_health(Health(plan=plan, archives=archives, client=client, run=run), report):
            return stay(process, run, report)
    except StartFailed as problem:
        report("\n".join(["start failed:", *render_failure(problem.failure)]))
        write_state(run.failure, problem.failure)
        return 1
    except Interrupted:
        return 0
    finally:
        stop(run)


def start_torchserve(plan: Plan, run: RunDir, model_store: Path, report: Report) -> subprocess.Popen[bytes]:
    """Start it and wait until every model answers right; nothing of it is left where that fails."""
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
    with stop_where_it_fails(run, report):
        state = begin_state(run, run.properties, archives)
        state = dataclasses.replace(state, throttled_at_start=read_throttled())
        began = time.monotonic()
        watcher = Watcher(run=run, oom_kills_before=read_oom_kills())
        write_state(run.state, state)
        process = launch(plan, run, model_store)
        around = Surroundings(
            client=make_instance_client(plan),
            find_failure=watcher.find,
            find_death=lambda: find_death(process, run),
            report=report,
        )
        wait_until_ready(plan, archives, around)
        ready = dataclasses.replace(
            state,
            phase=READY,
            configuration=read_configuration(run.server_log),
            seconds_to_ready=round(time.monotonic() - began, 1),
            throttled_when_ready=read_throttled(),
        )
        write_state(run.state, ready)
        return process


def find_death(process: subprocess.Popen[bytes], run: RunDir) -> Failure | None:
    """Why TorchServe ended or shall end; None while it runs.

    A stop that came before TorchServe carried its mark found nothing to end, but it took server.json away.
    """
    if not run.state.exists():
        return STOPPED
    return None if process.poll() is None else _explain_death(run)


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


def _check(plan: Plan, run: RunDir, model_store: Path) -> None:
    """StartFailed where the live server is not what was asked for."""
    result = verify.verify_instance(plan, run, model_store)
    if not result.good:
        lines = tuple(verify.render_summary(plan, result).splitlines())
        raise StartFailed(Failure(cause="the live server is not as asked for", lines=lines))
