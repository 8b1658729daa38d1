"""Everything that runs on one machine: HAProxy, and instances of TorchServe behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from config.definitions import ModelDefinition
from config.errors import ConfigError, FitError
from config.installed import Installed
from config.plan import INSTANCES_FOLDER, Inputs, Plan
from config.rules import Chosen, choose, plan_instance
from config.rules.door import plan_door
from config.rules.instances import Share, count_door_mib, explain_count, list_counts, plan_shares
from config.rules.layout import check_sizes
from config.rules.timing import plan_timing_job
from config.rules.whole import merge_plans
from config.timings import NO_TIMINGS, NOT_TIMED, Timed, TimingJob, Timings
from config.topology import Topology
from config.tuned import NOT_TUNED, Tuned

OF_THE_WHOLE = (
    "bind",
    "token_file",
    "instances",
    "deadline_ms",
    "tls_cert",
    "tls_key",
    "generation",
)
"""Inputs that are none of an instance's own."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The plans of one machine."""

    plan: Plan
    """Of the whole."""
    instances: Mapping[str, Plan]
    """Of each instance, by name."""


def make_site(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    timings: Timings = NO_TIMINGS,
    tuned: Tuned = NOT_TUNED,
) -> Site:
    """Everything decided; raises ConfigError where something asked for cannot be."""
    tuned = tuned.leave_to(inputs)
    filled = tuned.fill(inputs)
    job = _plan_job(topology, models, filled, installed, tuned) if timings.raw else None
    site = _plan_site(topology, models, filled, installed, timings.select(job), tuned)
    return replace(site, plan=replace(site.plan, inputs=inputs))


def make_timing_job(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    tuned: Tuned = NOT_TUNED,
) -> TimingJob:
    """What such a site goes by, in the places of its workers."""
    tuned = tuned.leave_to(inputs)
    return _plan_job(topology, models, tuned.fill(inputs), installed, tuned)


def _plan_job(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    tuned: Tuned,
) -> TimingJob:
    plan = _plan_site(topology, models, inputs, installed, NOT_TIMED, tuned).plan
    return plan_timing_job(topology, models, inputs, plan)


def _plan_site(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    timed: Timed,
    tuned: Tuned,
) -> Site:
    chosen = choose(topology, models, inputs, installed, timed, tuned)
    if installed.haproxy is None and inputs.topology == "live":
        raise ConfigError("haproxy is not on this machine: run `make setup`")
    check_sizes(inputs, topology)
    shares, plans, why = _plan_instances(topology, models, inputs, chosen)
    door_mib = count_door_mib(topology)
    whole = merge_plans(topology, inputs, shares, plans, why)
    return Site(plan=replace(whole, door=plan_door(inputs, plans, door_mib)), instances=plans)


def _plan_instances(
    topology: Topology, models: Sequence[ModelDefinition], inputs: Inputs, chosen: Chosen
) -> tuple[Sequence[Share], dict[str, Plan], str]:
    """As many as fit of what would be best; and why so many."""
    too_small = ""
    counts = list_counts(topology, inputs)
    for count in counts:
        shares = plan_shares(topology, inputs, [model.name for model in models], count)
        try:
            plans = {share.name: _plan_instance(share, models, inputs, chosen, count) for share in shares}
        except FitError as problem:
            if count == counts[-1]:
                raise
            too_small = too_small or f" ({problem})"
            continue
        return shares, plans, explain_count(topology, inputs, count) + too_small
    raise AssertionError("there is always one instance to try")


def _plan_instance(
    share: Share, models: Sequence[ModelDefinition], inputs: Inputs, chosen: Chosen, count: int
) -> Plan:
    served = [model for model in models if model.name in share.models]
    try:
        return plan_instance(share, served, _hand_down(inputs, share), chosen)
    except FitError as problem:
        of = f"instance {share.name} of {count}, with CPUs {share.describe_cpus()}"
        cure = "; fewer instances have more each: INSTANCES=1" if count > 1 else ""
        raise FitError(f"{problem} ({of}{cure})") from problem


def _hand_down(inputs: Inputs, share: Share) -> Inputs:
    """What an instance was asked for."""
    return replace(
        inputs,
        models=share.models,
        workers=share.workers,
        port=share.port,
        run_dir=f"{inputs.run_dir}/{INSTANCES_FOLDER}/{share.name}",
        **{name: getattr(Inputs, name) for name in OF_THE_WHOLE},
    )
