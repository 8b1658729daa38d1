"""What the tests of sites share: a site in one call, and what holds of every one."""

from __future__ import annotations

from config.plan import Plan
from config.rules.instances import count_door_mib
from config.rules.site import Site, make_site
from config.topology import Topology, read_topology
from tests.config.planning import INSTALLED, MACHINES, MODELS, make_inputs


def make_door(machine: str | Topology, models=MODELS, **changes) -> Site:
    """A site behind the door."""
    topology = read_topology(MACHINES / machine) if isinstance(machine, str) else machine
    names = tuple(model.name for model in models)
    inputs = make_inputs(**{"models": names, **changes})
    return make_site(topology, models, inputs, INSTALLED)


def check_shares(topology: Topology, site: Site) -> None:
    """What holds on any machine."""
    whole, plans = site.plan, list(site.instances.values())
    shares = [plan.machine for plan in plans]
    cpus = [cpu for share in shares for cpu in share["cpus_allowed"]]
    if topology.owns_cpus:
        assert len(cpus) == len(set(cpus))
        assert set(cpus) <= set(topology.cpus_allowed)
    else:
        assert all(share["cpus_allowed"] == list(topology.cpus_allowed) for share in shares)
        threads = [plan.layout.workers_per_model.value * plan.layout.cores_per_worker.value for plan in plans]
        assert sum(threads) <= max(1, topology.quota_cpus)
    assert (
        sum(share["memory_limit_mib"] for share in shares) + count_door_mib(topology)
        <= topology.memory_limit_mib
    )
    assert sum(share["usable_cores"] for share in shares) <= topology.usable_cores
    if not topology.owns_cpus:
        assert sum(share["quota_cpus"] for share in shares) <= topology.quota_cpus
    for plan in plans:
        check_instance(plan)
    check_whole(whole, plans)
    assert Plan.from_json(whole.to_json()).to_json() == whole.to_json()


def check_instance(plan: Plan) -> None:
    """Its workers stay in its share; its REST addresses are Unix sockets."""
    own = set(plan.machine["cpus_allowed"])
    assert {cpu for rank in plan.layout.worker_cpus.value for cpu in rank} <= own
    confined = plan.layout.server_cpus.value
    assert confined is None or set(confined) <= own
    shared = plan.machine["quota_cpus"] is not None and plan.machine["quota_cpus"] < len(own)
    assert confined is not None or plan.launched or shared
    assert (plan.door, plan.instances) == ({}, {})
    assert plan.properties["inference_address"].value == f"unix:{plan.inputs.run_dir}/tmp/inference.sock"


def check_whole(whole: Plan, plans: list[Plan]) -> None:
    ranks = [rank for plan in plans for rank in plan.layout.worker_cpus.value]
    assert whole.layout.worker_cpus.value == ranks
    assert len(whole.layout.memory_nodes.value) == len(ranks)
    assert whole.layout.core_list.value == sorted({cpu for p in plans for cpu in p.layout.core_list.value})
    for name, model in whole.models.items():
        assert model.workers.value == sum(p.models[name].workers.value for p in plans if name in p.models)
    assert whole.java.bodies_mib.value == sum(plan.java.bodies_mib.value for plan in plans)
    assert [one.workers for one in whole.instances.values()] == [
        plan.layout.workers_per_model.value for plan in plans
    ]
