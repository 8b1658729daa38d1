"""Renders haproxy.cfg from the plan: the door, the queues behind it, and why each line is there."""

from __future__ import annotations

from collections.abc import Collection

from config.door.entrance import render_entrance, render_metrics, render_supervisor
from config.door.process import (
    ENDING,
    LISTENER,
    DoorFiles,
    name_prediction,
    name_state,
    render_defaults,
    render_process,
)
from config.door.queues import render_entries, render_queue
from config.plan import Plan
from config.rules.door import list_places

__all__ = [
    "ENDING",
    "LISTENER",
    "DoorFiles",
    "list_variables",
    "name_prediction",
    "render_door",
]

HEADER = """\
# Written by `make plan` from plan.json; edits are lost. Change the inputs and run it again.
#
# A request passes twice through this process. The first hop (frontend door, backend <model>.door) decides
# who, what and by when; the second (frontend <model>.queue, backends <model> and <model>.large) holds what
# waits, the earliest deadline first, and hands it to the instances. Between them is a Unix socket, so that
# the first can say 504 by the deadline whatever the second does.
"""


def render_door(plan: Plan, files: DoorFiles) -> str:
    """The text of haproxy.cfg."""
    sections = [
        render_process(plan, files),
        render_defaults(plan),
        *render_entrance(plan, files),
        render_supervisor(files),
        render_metrics(plan),
        *(section for model in plan.models for section in render_entries(plan, model, files)),
        *(section for model in plan.models for section in render_queue(plan, model, files)),
    ]
    return "\n".join([HEADER, *("\n".join(section) + "\n" for section in sections)])


def list_variables(plan: Plan, *, listener: str = "", serving: Collection[str] = ()) -> dict[str, str]:
    """The environment that the configuration names: who serves, and what the door listens on."""
    states = {
        name_state(name): "enabled" if name in serving else "disabled" for name, _ in list_places(plan.inputs)
    }
    address = listener or f"{plan.inputs.bind}:{plan.inputs.port}"
    return {LISTENER: address, **states}
