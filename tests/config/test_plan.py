"""The whole plan: golden values, plan.json there and back, reasons, bytes that do not change."""

from __future__ import annotations

import json

import pytest

from config.errors import ConfigError
from config.plan import read_plan, write_plan
from tests.config.planning import ALL_MACHINES, plan_machine, read_golden


@pytest.mark.parametrize("machine", ALL_MACHINES)
def test_golden(machine):
    """After an intended change: python -m tests.config.planning."""
    file, text = read_golden(machine)
    assert json.loads(file.read_text(encoding="utf-8")) == json.loads(text)


@pytest.mark.parametrize("machine", ["two-cores", "no-numa", "two-sockets-smt"])
def test_round_trip(machine, tmp_path):
    plan = plan_machine(machine)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path) == read_plan(tmp_path / "plan.json") == plan
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Invalid JSON"),
        ("\xe9", "Invalid JSON"),
        ("[]", ".*: got \\[]"),
        ('{"schema": 4}', "schema: .* 5: got 4"),
        ('{"schema": 5, "machine": 1}', "settings: Field required"),
    ],
)
def test_file_that_is_no_plan(tmp_path, text, told):
    (tmp_path / "plan.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=rf"plan.json: not a plan: {told}.*; run `make serve` again$"):
        read_plan(tmp_path)


def test_no_plan(tmp_path):
    with pytest.raises(ConfigError, match=r"no plan: .*plan.json: No such file.*; run `make serve` first"):
        read_plan(tmp_path)


def test_the_same_settings_are_the_same_bytes():
    assert plan_machine("sub-numa-clusters").to_json() == plan_machine("sub-numa-clusters").to_json()


def test_settings_are_those_that_were_given():
    plan = plan_machine(workers=2, precision="bf16", batch={"bert": 3})
    given = {name: plan.settings[name] for name in ("workers", "precision", "batch")}
    assert given == {"workers": 2, "precision": "bf16", "batch": {"bert": 3}}
    assert not {"mode", "port", "instances"} & {*plan.settings}


@pytest.mark.parametrize("machine", ["two-cores", "container-quota-v2", "no-numa"])
def test_what_depends_on_machine_or_settings_has_a_reason(machine):
    plan = plan_machine(machine)
    paths = ["instances", "libraries.allocator", "libraries.openmp", "proxy.threads", "proxy.places"]
    for name, instance in plan.instances.items():
        paths += [
            f"{name}.{one}" for one in ("worker_cpus", "cores_per_worker", "java.bodies_mib", "queue_size")
        ]
        paths += [f"{name}.memory_nodes"] * instance.launched + [f"{name}.launched"] * (not instance.launched)
        paths += [f"{name}.properties.cpu_launcher_args"] * instance.pinned
        for model in instance.models:
            decided = (
                "backend",
                "precision",
                "batch_size",
                "response_timeout_s",
                "startup_timeout_s",
                "maxconn",
            )
            paths += [f"{name}.{model}.{one}" for one in decided]
    assert not [path for path in paths if len(plan.reasons.get(path, "")) < 5]
    assert not [path for path, reason in plan.reasons.items() if "\n" in reason or not reason]


def test_reasons_are_of_values_that_there_are():
    plan = plan_machine("container-quota-v2")
    raw = json.loads(plan.to_json())
    for path in plan.reasons:
        part = raw
        for name in path.split(".") if path != "instances" else []:
            inner = {**part, **part.get("instances", {}), **part.get("models", {})}
            assert name in inner, path
            part = inner[name]
