"""Collects the evidence of a run directory's server and judges it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from config.plan import Plan
from server.archives import read_archives_left
from server.call import make_client, make_instance_client, read_instances
from server.rundir import RunDir
from server.verify.collect import collect
from server.verify.door import DOOR_CHECKS, collect_door
from server.verify.registry import Judged, Result, judge


def verify(plan: Plan, run: RunDir, model_store: Path) -> Result:
    """Compare the plan with what is live now: HAProxy, then each instance."""
    seen = collect_door(plan, run, make_client(plan, run))
    judged = [Judged(model=None, pid=None, finding=check(plan, seen)) for check in DOOR_CHECKS]
    for name, (folder, own) in read_instances(run, plan).items():
        result = verify_instance(own, folder, model_store)
        judged += [dataclasses.replace(one, instance=name) for one in result.judged]
    return Result(judged=tuple(judged))


def verify_instance(plan: Plan, run: RunDir, model_store: Path) -> Result:
    """The same of one TorchServe."""
    archives = read_archives_left(plan, model_store)
    return judge(plan, collect(plan, run, archives, make_instance_client(plan)))
