"""`make reload`: has the supervisor move to another set of instances."""

from __future__ import annotations

import http.client
import json
import time
from http import HTTPStatus
from pathlib import Path

from config.plan import Plan
from config.proxy import GENERATIONS
from config.render import write_next
from config.terminal import Report
from server.api import UNIX, Connection
from server.errors import ServerError
from server.processes import find_marked
from server.rundir import RunDir
from server.start import count_told, follow
from server.supervisor.record import read_record
from server.supervisor.reload import DONE

POLL_S = 0.2
TIMEOUT_S = 5.0


def choose_generation(plan: Plan) -> str:
    """The one that does not run."""
    (other,) = set(GENERATIONS) - {plan.generation}
    return other


def check_reloadable(run: RunDir) -> None:
    """ServerError where nothing runs that could be reloaded."""
    if not any(process.is_supervisor for process in find_marked(run.path)):
        raise ServerError(f"no server runs from {run.path}: start one: make serve")


def check_same_proxy(running: Plan, following: Plan) -> None:
    """ServerError for what the running HAProxy has for good: it listens, and asks by these names. And the
    supervisor is of one package set's environment, from which it starts the instances."""
    fixed = [
        {
            "MODELS": " ".join(sorted(plan.models)),
            "PORT": plan.proxy.port,
            "HOST": plan.proxy.host,
            "TLS_CERT": plan.proxy.tls_cert,
            "TLS_KEY": plan.proxy.tls_key,
            "package set": plan.package_set,
        }
        for plan in (running, following)
    ]
    if changed := [name for name in fixed[0] if fixed[0][name] != fixed[1][name]]:
        now, planned = (", ".join(str(plan[name]) for name in changed) for plan in fixed)
        raise ServerError(
            f"a reload cannot change {', '.join(changed)}: got {planned}, running with {now}; leave it as it "
            "is, or: make stop && make serve"
        )


def reload(run: RunDir, plan_now: Plan, plan_next: Plan, report: Report) -> int:
    """0 when the new set serves, 1 when nothing was changed."""
    check_same_proxy(plan_now, plan_next)
    write_next(plan_next)
    before = _count_reloads(run)
    with follow(run.supervisor_log, report, told=count_told(run.supervisor_log)) as read_lines:
        ask(Path(run.proxy_files.supervisor_socket))
        while _count_reloads(run) == before:
            time.sleep(POLL_S)
            read_lines()
            check_reloadable(run)
    record = read_record(run.record)
    return 0 if record and record.reload == DONE else 1


def _count_reloads(run: RunDir) -> int:
    record = read_record(run.record)
    return record.reloads if record else 0


def ask(path: Path) -> None:
    """ServerError where the supervisor does not take it."""
    connection = Connection(f"{UNIX}{path}", "", TIMEOUT_S)
    try:
        connection.request("POST", "/reload")
        answer = connection.getresponse()
        said = json.loads(answer.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise ServerError(f"the supervisor does not answer: {path}: {problem}") from problem
    if answer.status != HTTPStatus.ACCEPTED:
        raise ServerError(f"the supervisor rejects the reload: {said.get('rejected')}")
