"""Collects the evidence of a run directory's server and judges it."""

from __future__ import annotations

from pathlib import Path

from config.plan import Plan
from server.archives import read_archives_left
from server.call import make_client
from server.rundir import RunDir
from server.verify.collect import collect
from server.verify.registry import Result, judge


def verify(plan: Plan, run: RunDir, model_store: Path) -> Result:
    """Compare the plan with what is live now."""
    archives = read_archives_left(plan, model_store)
    return judge(plan, collect(plan, run, archives, make_client(plan, run)))
