"""Starts one TorchServe behind a door, verifies it, and stays with it: a process of its own, the keeper."""

from __future__ import annotations

from pathlib import Path

from config.folders import hold_lock
from config.plan import read_plan
from server import verify
from server.archives import read_archives
from server.call import make_client
from server.health import Health, keep_health
from server.launch import confine
from server.progress import say
from server.ready import StartFailed
from server.rundir import RunDir
from server.start import Interrupted, start, stay
from server.state import Failure, write_state
from server.status import render_failure
from server.stop import stop


def keep_instance(name: str, run: RunDir, model_store: Path, graceful_seconds: float) -> int:
    """Until a signal ends it (0), or TorchServe ends, does not start, or is not as asked for (1)."""

    def report(line: str) -> None:
        say(f"{name}: {line}")

    plan = read_plan(run.plan)
    confine(plan)
    try:
        with hold_lock(run.path):
            stop(run)
            process = start(run, model_store, report)
        _check(run, model_store)
        with keep_health(make_health(run, model_store), report):
            return stay(process, run, report)
    except StartFailed as problem:
        report("\n".join(["start failed:", *render_failure(problem.failure)]))
        write_state(run.failure, problem.failure)
        return 1
    except Interrupted:
        return 0
    finally:
        stop(run, graceful_seconds)


def make_health(run: RunDir, model_store: Path) -> Health:
    """What looks at the server of a run directory."""
    plan = read_plan(run.plan)
    archives = read_archives(plan, model_store)
    return Health(plan=plan, archives=archives, client=make_client(plan, run), run=run)


def _check(run: RunDir, model_store: Path) -> None:
    """StartFailed where the live server is not what was asked for."""
    plan = read_plan(run.plan)
    result = verify.verify(plan, run, model_store)
    if not result.good:
        lines = tuple(verify.render_summary(plan, result).splitlines())
        raise StartFailed(Failure(cause="the live server is not as asked for", lines=lines))
