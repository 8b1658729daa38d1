"""Manifests as a real kubectl renders them: their schemas, what must hold beyond them, and planted faults.

They were not run on a cluster here. `python -m tests.fleet.test_kubernetes KUBECTL` writes the golden files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from docker.entrypoint import METRICS_PORT, SECRET, STORES
from tests.deploy.manifests import find_problems, list_pods
from tests.docs.pages import ROOT

FOLDER, GOLDEN = ROOT / "deploy/kubernetes", Path(__file__).parent / "golden"
PARTS = {"base": "base", "exclusive-cores": "overlays/exclusive-cores", "kserve": "overlays/kserve"}
VERSIONS = ("1.33", "1.35", "1.37")


def render(kubectl: Path, part: str) -> str:
    command = [kubectl, "kustomize", FOLDER / PARTS[part]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=PARTS)
def part(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_rendered_is_the_golden_file(kubectl, part):
    assert render(kubectl, part) == (GOLDEN / f"{part}.yaml").read_text()


def test_each_document_has_its_schema_in_three_versions(run_json, part):
    text = (GOLDEN / f"{part}.yaml").read_text()
    assert run_json("validate.py", *VERSIONS, text=text) == []


def test_what_must_hold_holds(part):
    documents = [*yaml.safe_load_all((GOLDEN / f"{part}.yaml").read_text())]
    assert find_problems(documents, exclusive=part == "exclusive-cores") == []
    for pod in list_pods(documents):
        mounts = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        assert str(SECRET.parent) in mounts
        assert not mounts & {*map(str, STORES)}  # archives are in the image, or KServe's own mount
        ports = {one["containerPort"] for one in pod["containers"][0]["ports"]}
        assert ports <= {8080, METRICS_PORT}


def change_container(change: Callable[[dict[str, Any]], Any]) -> Callable[[list[dict[str, Any]]], None]:
    def plant(documents: list[dict[str, Any]]) -> None:
        for pod in list_pods(documents):
            change(pod["containers"][0])

    return plant


def set_pod(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def plant(documents: list[dict[str, Any]]) -> None:
        for pod in list_pods(documents):
            pod.update(values)

    return plant


def choose_all(documents: list[dict[str, Any]]) -> None:
    for one in documents:
        if one["kind"] == "NetworkPolicy":
            one["spec"]["podSelector"] = {}


HALF = {"cpu": "2500m", "memory": "16Gi"}
FAULTS: Mapping[str, tuple[str, Callable[[list[dict[str, Any]]], None], str]] = {
    "grace period": ("base", set_pod(terminationGracePeriodSeconds=30), "grace period 30"),
    "no grace period": ("base", set_pod(terminationGracePeriodSeconds=None), "grace period None"),
    "fraction of a CPU": ("exclusive-cores", change_container(
        lambda one: one["resources"].update(limits=dict(HALF), requests=dict(HALF))), "whole CPUs"),
    "requests below limits": ("exclusive-cores", change_container(
        lambda one: one["resources"]["requests"].update(cpu="4")), "whole CPUs"),
    "all pods of the namespace": ("base", choose_all, "NetworkPolicy"),
    "another port": ("base", change_container(
        lambda one: one["readinessProbe"]["httpGet"].update(port=8081)), "readinessProbe asks port 8081"),
    "no probe": ("kserve", change_container(
        lambda one: one.pop("livenessProbe")), "livenessProbe asks port None"),
    "no memory limit": ("base", change_container(
        lambda one: one["resources"]["limits"].pop("memory")), "no limit"),
    "a writable root": ("kserve", change_container(
        lambda one: one["securityContext"].update(readOnlyRootFilesystem=False)), "read-only root"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    part, plant, said = FAULTS[fault]
    documents = [*yaml.safe_load_all((GOLDEN / f"{part}.yaml").read_text())]
    plant(documents)
    found = find_problems(documents, exclusive=part == "exclusive-cores")
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("base", "replicas: 2", "replica: 2"),
        ("base", "readOnlyRootFilesystem", "readonlyRootFilesystem"),
        ("base", "maxUnavailable: 1", "maxUnavailable: [1]"),
        ("kserve", "protocolVersions", "protocolVersion"),
        ("kserve", "minReplicas", "replicas"),
    ],
)
def test_the_schemas_find_a_wrong_field(run_json, part, old, new):
    text = (GOLDEN / f"{part}.yaml").read_text()
    assert old in text
    assert run_json("validate.py", VERSIONS[-1], text=text.replace(old, new)) != []


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in PARTS:
        (GOLDEN / f"{name}.yaml").write_text(render(Path(sys.argv[1]), name))
