"""Whether a server runs from a run directory, and whether it is the one that is planned."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from config.plan import Plan
from config.terminal import Report
from server.errors import ServerError
from server.processes import find_marked
from server.rundir import RunDir
from server.state import STARTING, State, read_state
from server.stop import stop

if TYPE_CHECKING:
    from handlers.definition import Packed


def digest_plan(plan: Plan) -> str:
    """Digest of its plan.json, to see whether a running server was started from it."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest()


def digest_file(file: Path) -> str | None:
    """Of a configuration; None where there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def identify_archives(plan: Plan, archives: Mapping[str, Packed]) -> dict[str, str]:
    """Model → archive id, as server.json has it; of archives that others made size and time of each."""
    found = {name: archive.archive_id for name, archive in archives.items()}
    for name, model in plan.models.items():
        if not model.kit:
            files = [(Path(plan.model_store) / file).stat() for file in model.archives.values()]
            found[name] = " ".join(f"{file.st_size}-{file.st_mtime_ns}" for file in files)
    return found


def begin_state(plan: Plan, archives: Mapping[str, Packed], configuration: Path) -> State:
    """What is known of a start before anything runs, of the server or of an instance."""
    return State(
        phase=STARTING,
        plan_sha256=digest_plan(plan),
        properties_sha256=digest_file(configuration),
        archives=identify_archives(plan, archives),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def is_running(run: RunDir, plan: Plan, archives: Mapping[str, Packed], report: Report) -> bool:
    """Whether a server of this plan and these archives runs, and ServerError when it is another one.

    Call it with the lock held, before the plan is written: what an earlier start left behind is ended.
    """
    processes = find_marked(run.path)
    if not processes:
        return False
    state, why = read_state(run.state), ""
    if not any(process.is_supervisor for process in processes) or (state and state.phase == STARTING):
        report(f"an earlier start left {len(processes)} process(es) behind: {stop(run).describe()}")
        return False
    ids = identify_archives(plan, archives)
    if state is None:
        why = "nothing says from which plan: server.json is missing or damaged"
    elif state.plan_sha256 != digest_plan(plan):
        why = "it has another plan"
    elif rebuilt := [name for name, known in state.archives.items() if ids.get(name) != known]:
        why = f"the archives of {', '.join(rebuilt)} were rebuilt since it was started"
    if why:
        raise ServerError(
            f"a server already runs from {run.path}, and {why}; run `make stop` first, then `make serve`"
        )
    return True
