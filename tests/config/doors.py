"""Doors for the tests of planning and rendering.

`python -m tests.config.doors` writes golden/*.haproxy.cfg again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from config.definitions import ModelDefinition
from config.door import DoorFiles, render_door
from config.plan import Plan
from config.rules.door import plan_door
from config.rules.site import make_site
from config.topology import read_topology
from tests.config.planning import GOLDEN, INSTALLED, MACHINES, MODELS, drop_comments, make_inputs

FILES = DoorFiles(
    sockets="/kit/run/tmp",
    admin_socket="/kit/run/tmp/admin.sock",
    supervisor_socket="/kit/run/tmp/supervisor.sock",
    bearers="/kit/run/bearers.lst",
    certificate="/kit/run/door.pem",
)
GOLDEN_DOORS = ("two-cores", "two-sockets-smt")
MEMORY_MIB = 512


def plan_behind_door(
    machine: str = "two-cores",
    models: tuple[ModelDefinition, ...] = MODELS,
    memory_mib: int = MEMORY_MIB,
    **asked: Any,
) -> Plan:
    """The plan of the whole, with the door in it."""
    names = tuple(model.name for model in models)
    inputs = make_inputs(**{"models": names, "run_dir": "/kit/run", **asked})
    site = make_site(read_topology(MACHINES / machine), models, inputs, INSTALLED)
    return replace(site.plan, door=plan_door(inputs, site.instances, memory_mib))


def change_settings(plan: Plan, **values: Any) -> Plan:
    """Other values of some of the door's settings; a dot in a name is written __."""
    named = {name.replace("__", "."): value for name, value in values.items()}
    changed = {name: replace(plan.door[name], value=value) for name, value in named.items()}
    return replace(plan, door={**plan.door, **changed})


def golden_door(machine: str) -> tuple[Path, str]:
    """File, and what it must hold."""
    return GOLDEN / f"{machine}.haproxy.cfg", drop_comments(render_door(plan_behind_door(machine), FILES))


if __name__ == "__main__":
    for name in GOLDEN_DOORS:
        file, text = golden_door(name)
        file.write_text(text, encoding="utf-8")
