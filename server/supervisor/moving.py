"""A reload from the order to its end: what is planned in run/next takes over, or nothing changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from config.errors import ConfigError
from config.plan import Plan, read_plan
from config.terminal import Report
from config.topology import MIB
from server.archives import check_packed, check_precisions, read_archives
from server.call import read_instances
from server.errors import ServerError
from server.rundir import RunDir
from server.running import digest_file, digest_plan, identify_archives
from server.state import read_state, write_state
from server.supervisor.door import Door, check_configuration
from server.supervisor.instance import Instance
from server.supervisor.reload import Reload, ReloadFailed, fits_beside

DONE = "done"
FAILED = "failed: "


class Moving:
    """One reload; `step` is called once a turn until `ended`."""

    def __init__(
        self, run: RunDir, plan: Plan, door: Door, instances: dict[str, Instance], report: Report
    ) -> None:
        """Nothing is started yet; what cannot be read fails with the first step."""
        self.plan = plan
        self._door = door
        self.ended = False
        self._run = run
        self._steps = _go(run, plan, door, instances, report)
        self._report = report

    def step(self) -> str:
        """What is done now, "done", or "failed: " and why."""
        try:
            return next(self._steps)
        except StopIteration:
            self.plan = _commit(self._run)
            self._change_token()
            return self._end(DONE)
        except (ReloadFailed, ServerError, ConfigError, OSError) as problem:
            return self._end(f"{FAILED}{problem}; the server is what it was")

    def _change_token(self) -> None:
        """To the one in the token's file, which may have been edited."""
        try:
            self._door.change_token()
        except ServerError as problem:
            self._report(f"reload: the token is what it was: {problem}")

    def _end(self, how: str) -> str:
        self.ended = True
        self._report(f"reload: {how}")
        return how


def _go(run: RunDir, plan: Plan, door: Door, instances: dict[str, Instance], report: Report) -> Iterator[str]:
    asked = read_plan(run.next / "plan.json")
    store = Path(asked.inputs.model_store)
    archives = read_archives(asked, store)
    check_precisions(asked, archives)
    check_packed(archives.values())
    check_configuration(run, asked, run.next / run.door.name)
    new = [
        Instance(name, folder, own, store, asked.door, report)
        for name, (folder, own) in read_instances(run, asked).items()
    ]
    for one in new:
        one.gentle = True
    beside = fits_beside(instances, read_available_mib(), int(asked.machine["memory_limit_mib"]))
    where = "beside what runs" if beside else "one instance after the other: the memory holds one set only"
    report(f"reload: {where}")
    yield from Reload(
        instances=instances,
        new=new,
        door=door,
        report=report,
        beside=beside,
        again=lambda old: Instance(
            old.name, old.run, old.plan, Path(plan.inputs.model_store), old.door, report
        ),
    ).go()


def read_available_mib(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that could be taken without swapping, of the machine."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // MIB
    return 0


def _commit(run: RunDir) -> Plan:
    """What was next is the plan now, and what `make status` and `make verify` compare with."""
    for name in (run.door.name, run.plan.name):
        (run.next / name).replace(run.path / name)
    plan, state = read_plan(run.plan), read_state(run.state)
    archives = read_archives(plan, Path(plan.inputs.model_store))
    if state:
        write_state(
            run.state,
            dataclasses.replace(
                state,
                plan_sha256=digest_plan(run),
                properties_sha256=digest_file(run.door),
                archives=identify_archives(archives),
            ),
        )
    return plan
