"""`python -m server supervise`: the supervisor's own process, for a run directory that is prepared."""

from __future__ import annotations

from pathlib import Path

from config.plan import read_plan
from config.terminal import Report
from server.call import read_instances
from server.launch import confine
from server.rundir import RunDir
from server.start import catch_signals
from server.supervisor.answers import answer_probes
from server.supervisor.door import Door
from server.supervisor.instance import Instance
from server.supervisor.supervisor import Supervisor


def supervise(run: RunDir, model_store: Path, report: Report) -> int:
    """Until a signal ends it (0), or its start fails (1)."""
    plan = read_plan(run.plan)
    confine(plan)
    instances = [
        Instance(name, folder, own, model_store, plan.door, report)
        for name, (folder, own) in read_instances(run, plan).items()
    ]
    supervisor = Supervisor(run, plan, Door(run, plan, report), instances, report)
    with (
        catch_signals(),
        answer_probes(run.supervisor_socket, lambda: supervisor.standing, supervisor.ask_reload),
    ):
        return supervisor.run()
