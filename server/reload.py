"""`make reload`: plans another set of instances, and asks the supervisor to move to it."""

from __future__ import annotations

import http.client
import json
import time
from http import HTTPStatus
from pathlib import Path

from config.plan import Inputs, Plan
from config.rules.instances import GENERATIONS
from config.rules.site import Site
from config.terminal import Report
from config.write import write_next
from server.api import UNIX, Connection
from server.errors import ServerError
from server.processes import find_marked
from server.rundir import RunDir
from server.start import count_told, follow
from server.supervisor.moving import DONE
from server.supervisor.record import read_record

POLL_S = 0.2
TIMEOUT_S = 5.0
FIXED = ("models", "port", "bind", "tls_cert", "tls_key", "package_set")
"""Inputs that the running door has for good: it listens, and asks by these names. And its supervisor is of
one package set's environment, from which it starts the instances."""


def choose_generation(plan: Plan) -> str:
    """The one that does not run."""
    (other,) = set(GENERATIONS) - {plan.inputs.generation}
    return other


def check_reloadable(run: RunDir) -> None:
    """ServerError where nothing runs that could be reloaded."""
    if not any(process.is_supervisor for process in find_marked(run.path)):
        raise ServerError(f"no server runs from {run.path}: start one: make serve")


def check_same_door(running: Inputs, asked: Inputs) -> None:
    """ServerError for what needs another door."""
    changed = [name for name in FIXED if getattr(running, name) != getattr(asked, name)]
    if changed:
        raise ServerError(
            f"a reload cannot change {', '.join(changed)}: got {_list(asked, changed)}, running with "
            f"{_list(running, changed)}; leave it as it is, or: make stop && make serve"
        )


def _list(inputs: Inputs, names: list[str]) -> str:
    return ", ".join(str(getattr(inputs, name)) for name in names)


def reload(run: RunDir, plan: Plan, asked: Site, report: Report) -> int:
    """0 when the new set serves, 1 when nothing was changed."""
    check_same_door(plan.inputs, asked.plan.inputs)
    write_next(asked, run.path)
    before = _count_reloads(run)
    with follow(run.supervisor_log, report, told=count_told(run.supervisor_log)) as read_lines:
        ask(run.supervisor_socket)
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
        raise ServerError(f"the supervisor refuses to reload: {said.get('refused')}")
