"""Pure functions from machine + models + request to the plan. Reading is done before, rendering after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from config.definitions import ModelDefinition
from config.installed import Installed
from config.plan import Inputs, Java, Layout, Libraries, ModelPlan, Plan, Setting
from config.rules import (
    backends,
    batching,
    environment,
    java,
    layout,
    libraries,
    network,
    pinning,
    requests,
    serving,
    variants,
)
from config.rules.instances import Share
from config.rules.layout import Candidate, Chunk, choose_layout
from config.rules.variants import Chosen
from config.timings import Timed
from config.topology import Topology
from config.tuned import Tuned
from handlers.backends.catalogue import DEFAULT_SET

__all__ = ["choose", "plan_instance"]


def choose(
    topology: Topology,
    models: Sequence[ModelDefinition],
    inputs: Inputs,
    installed: Installed,
    timed: Timed,
    tuned: Tuned,
) -> Chosen:
    """What is asked for is judged, and what no layout changes is decided."""
    requests.check_request(topology, inputs)
    found = libraries.plan_libraries(inputs, installed)
    if inputs.topology == "live":
        backends.check_installed(backends.find_asked(inputs), installed.missing_backends)
    computing, precisions = variants.choose_variants(models, inputs, tuned)
    chosen = Chosen(libraries=found, backends=computing, precisions=precisions, timed=timed, tuned=tuned)
    requests.check_models(models, chosen.variants)
    return chosen


def plan_instance(share: Share, models: Sequence[ModelDefinition], inputs: Inputs, chosen: Chosen) -> Plan:
    """One TorchServe on its share of the machine."""
    topology = share.topology
    fitting = java.count_workers_in_memory(topology, models, inputs, chosen.variants)
    cut = choose_layout(topology, inputs, fitting)
    pinned = _choose_pinning(topology, inputs, cut)
    # Where nothing else keeps it off the others' CPUs.
    server_cpus = topology.cpus_allowed if pinned.args is None and topology.owns_cpus else None
    jvm = java.plan_java(topology, inputs)
    figures = batching.Figures(
        chosen=chosen, workers=len(cut.chunks), cores=cut.cores, bodies_mib=jvm.bodies_mib.value
    )
    plans = batching.plan_models(models, inputs, figures)
    launch = environment.Launch(launched=pinned.args is not None, bound=pinned.bound)
    found = chosen.libraries
    return Plan(
        inputs=inputs,
        machine=topology.to_dict(),
        layout=_plan_layout(topology, inputs, cut, pinned, server_cpus, fitting, chosen.tuned),
        libraries=found,
        environment=environment.plan_environment(models, plans, inputs.off, found, cut.cores, launch),
        worker_environment=environment.plan_worker_environment(
            found, cut.cores, launch, {one.backend.value for one in plans.values()}
        ),
        properties=_plan_properties(topology, inputs, pinned, found, plans, jvm),
        java=jvm,
        models=plans,
        timings=chosen.timed.raw,
    )


def _choose_pinning(topology: Topology, inputs: Inputs, cut: Candidate) -> pinning.Pinning:
    if not inputs.pinning:
        return pinning.unpinned(cut.chunks, "switched off with --no-pinning: a baseline")
    if not topology.owns_cpus:
        return pinning.choose_unbound(topology, cut.chunks)
    counted = inputs.package_set != DEFAULT_SET
    return pinning.choose_pinning(topology, cut.chunks, counted=counted)


def _plan_layout(
    topology: Topology,
    inputs: Inputs,
    cut: Candidate,
    pinned: pinning.Pinning,
    server_cpus: Chunk | None,
    fitting: int,
    tuned: Tuned,
) -> Layout:
    everywhere = server_cpus or topology.cpus_allowed
    worker_cpus = cut.chunks if pinned.bound else (everywhere,) * len(cut.chunks)
    return Layout(
        workers_per_model=Setting(
            value=len(cut.chunks),
            reason=tuned.explain("workers") or layout.explain_workers(topology, inputs, cut, fitting),
        ),
        cores_per_worker=Setting(
            value=cut.cores,
            reason=tuned.explain("cores_per_worker") or layout.explain_cores(topology, inputs, cut),
        ),
        core_list=Setting(
            value=sorted({cpu for chunk in worker_cpus for cpu in chunk}),
            reason=layout.explain_list(topology, of_share=True) if pinned.bound else pinned.args_reason,
        ),
        worker_cpus=Setting(
            value=[list(chunk) for chunk in worker_cpus],
            reason=f"by rank; no worker leaves its {cut.unit}, and none shares a core with another of its "
            "model"
            if pinned.bound
            else pinned.args_reason,
        ),
        memory_nodes=Setting(
            value=[None if nodes is None else list(nodes) for nodes in pinned.memory_nodes],
            reason=pinned.memory_reason,
        ),
        server_cpus=Setting(
            value=None if server_cpus is None else list(server_cpus),
            reason=layout.explain_server(topology, server_cpus),
        ),
    )


def _plan_properties(
    topology: Topology,
    inputs: Inputs,
    pinned: pinning.Pinning,
    chosen: Libraries,
    plans: Mapping[str, ModelPlan],
    jvm: Java,
) -> dict[str, Setting]:
    """One group after the other; a key is planned once (a test holds that)."""
    workers = next(iter(plans.values())).workers.value
    return {
        **serving.plan_cpu_switches(plans, pinned, chosen),
        **serving.plan_models_switches(inputs, plans, workers),
        **network.plan_addresses(inputs),
        **network.plan_access(inputs),
        **serving.plan_frontend(topology),
        "vmargs": jvm.vmargs,  # the torchserve command reads them from here
    }
