"""What must hold of a server's manifests in Kubernetes, beyond their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.processes import GRACEFUL_SECONDS

PORTS = {8080, 8082}
NEEDED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def list_pods(documents: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Specifications of pods: of Deployments and of KServe's runtimes."""
    for one in documents:
        if one["kind"] == "Deployment":
            yield one["spec"]["template"]["spec"]
        elif one["kind"] == "ServingRuntime":
            yield one["spec"]


def find_problems(documents: Sequence[Mapping[str, Any]], *, exclusive: bool = False) -> list[str]:
    """`exclusive`: workers are to have cores of their own."""
    found: list[str] = []
    graces = [
        one["spec"]["predictor"].get("terminationGracePeriodSeconds")
        for one in documents
        if one["kind"] == "InferenceService"
    ]
    for one in documents:
        chosen = one["spec"].get(
            {"NetworkPolicy": "podSelector", "PodDisruptionBudget": "selector"}.get(one["kind"], "")
        )
        if chosen is not None and not chosen.get("matchLabels"):
            found.append(f"{one['kind']}: an empty selector means all pods of the namespace")
    for pod in list_pods(documents):
        (container,) = pod["containers"]
        found += _check_container(container, exclusive=exclusive)
        grace = pod.get("terminationGracePeriodSeconds", next(iter(graces), None))
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])
        least = GRACEFUL_SECONDS + 5 + int(sleep[1])
        if grace is None or grace < least:
            found.append(f"grace period {grace}: at least {least:g} s are needed to answer what was accepted")
    return found


def _check_container(container: Mapping[str, Any], *, exclusive: bool) -> Iterator[str]:
    ports = {one.get("name", ""): one["containerPort"] for one in container["ports"]}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        port = container.get(name, {}).get("httpGet", {}).get("port")
        if ports.get(port, port) not in ports.values() or ports.get(port, port) not in PORTS:
            yield f"{name} asks port {port}"
    resources = container.get("resources", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    if not {"cpu", "memory"} <= limits.keys():
        yield "no limit of CPU or memory: the plan would be for the whole node"
    if exclusive and (not str(limits.get("cpu")).isdecimal() or requests.get("cpu") != limits.get("cpu")):
        yield f"cores of its own need whole CPUs, requests equal to limits: got {requests.get('cpu')}"
    if exclusive and requests.get("memory") != limits.get("memory"):
        yield "cores of its own need requests equal to limits, of memory too"
    security = container.get("securityContext", {})
    if {name: security.get(name) for name in NEEDED} != NEEDED:
        yield "the container must have a read-only root, no capability and no new privileges"
