"""Whether a server runs from a run directory, and whether it is the one that is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from config.folders import hold_lock
from config.plan import Plan
from config.terminal import Report
from server.errors import ServerError
from server.processes import find_marked
from server.rundir import RunDir
from server.state import STARTING, State, read_state
from server.stop import stop

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed

_RESTART = "run `make stop` first, then `make serve`"


def digest_plan(run: RunDir) -> str:
    """Digest of plan.json, to see whether a running server was started from it."""
    return hashlib.sha256(run.plan.read_bytes()).hexdigest()


def digest_file(file: Path) -> str | None:
    """Of a configuration; None where there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def identify_archives(archives: Mapping[str, Packed]) -> dict[str, str]:
    """Model → archive id, as server.json keeps it."""
    return {name: archive.archive_id for name, archive in archives.items()}


def is_running(run: RunDir, archives: Mapping[str, Packed], report: Report) -> bool:
    """Whether a server of this plan and these archives runs, and raise when it is another one.

    Call it with the lock held: what an earlier start left behind is ended.
    """
    processes = find_marked(run.path)
    if not processes:
        return False
    state = read_state(run.state)
    if not any(process.is_supervisor for process in processes) or (state and state.phase == STARTING):
        report(f"an earlier start left {len(processes)} process(es) behind: {stop(run).describe()}")
        return False
    _check_same_plan(run, state, digest_plan(run))
    ids = identify_archives(archives)
    rebuilt = [name for name, known in (state.archives if state else {}).items() if ids.get(name) != known]
    if rebuilt:
        _refuse(run, f"the archives of {', '.join(rebuilt)} were rebuilt since it was started")
    return True


def check_may_plan(run: RunDir, make_plan: Callable[[], Plan]) -> None:
    """Raise when a server runs that was started from another plan: plan.json is what it is judged by."""
    if not any(process.is_java for process in find_marked(run.path)):
        return  # without planning, which would only be done twice
    state = read_state(run.state)
    if state and state.phase == STARTING:
        with hold_lock(run.path):  # free: the start was killed, and the next one ends what it left
            return
    _check_same_plan(run, state, _digest(make_plan()))


def check_is_plan(run: RunDir, asked: Plan) -> None:
    """Raise when plan.json is not the plan that is asked for: another `make` wrote its own meanwhile."""
    if _digest(asked) != digest_plan(run):
        raise ServerError(
            f"{run.plan} is not the plan that was asked for: another `make` planned there meanwhile; run "
            "`make serve` again, or give each server its own RUN_DIR"
        )


def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.to_json().encode("utf-8")).hexdigest()


def _check_same_plan(run: RunDir, state: State | None, digest: str) -> None:
    if state is None:
        _refuse(run, "it cannot be told from which plan: server.json is missing or damaged")
    if state.plan_sha256 != digest:
        _refuse(run, "it has another plan")


def _refuse(run: RunDir, why: str) -> NoReturn:
    raise ServerError(f"a server already runs from {run.path}, and {why}; {_RESTART}")
