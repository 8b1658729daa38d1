"""tuned.json: there and back, what makes it stale, and how its numbers and a person's own reach the plan."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace

import pytest

from config.errors import ConfigError
from config.planning import Facts
from config.tuned import (
    NOT_TUNED,
    Tuned,
    describe_present,
    explain_stale,
    judge_tuned,
    read_tuned,
    write_tuned,
)
from tests.config.planning import find_machine, make_facts, plan_machine

TOPOLOGY = find_machine("two-cores")
EVIDENCE = "160/s at p99 ≤ 200 ms against 103/s of the default (1.55x, 1.49-1.61), trials in results/x"
SUMS = b"of all that is packed\n"
CHOSEN = {"workers": 1, "cores_per_worker": 2, "batch": {"resnet50": 4}, "delay_ms": {"resnet50": 3}}


@pytest.fixture
def facts(tmp_path) -> Facts:
    """With an archive of one of the models."""
    with zipfile.ZipFile(tmp_path / "bert.mar", "w") as archive:
        archive.writestr("SHA256SUMS", SUMS)
    return replace(make_facts(precision="bf16"), model_store=str(tmp_path))


def give(facts: Facts, **settings) -> Facts:
    """The same with other settings."""
    return replace(facts, settings=facts.settings.model_copy(update=settings))


def make_tuned(facts: Facts, **changes) -> Tuned:
    return replace(
        Tuned(
            made_for=describe_present(facts),
            limit={"percentile": 99, "ms": 200},
            chosen=CHOSEN,
            evidence={"resnet50": EVIDENCE},
        ),
        **changes,
    )


def test_there_and_back(facts, tmp_path):
    tuned = make_tuned(facts)
    write_tuned(tmp_path / "tuned.json", tuned)
    assert read_tuned(tmp_path / "tuned.json") == tuned
    assert read_tuned(tmp_path / "nothing") is None
    assert tuned.made_for["archives"] == {"bert": hashlib.sha256(SUMS).hexdigest(), "resnet50": None}
    assert "torch" in tuned.made_for["versions"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "\xe9",
        '{"schema": 2}',
        '{"schema": 1, "chosen": {"threads": 2}}',
        '{"schema": 1, "chosen": []}',
    ],
)
def test_a_file_that_is_no_tuned_plan(tmp_path, text):
    file = tmp_path / "tuned.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"tuned\.json: .*: got .*; remove it$"):
        read_tuned(file)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"cpu_model": "Z80"}, f"cpu model: Z80 → {TOPOLOGY.model_name}"),
        ({"cpus": [0]}, "cpus: [0] → [0, 1]"),
        ({"memory_mib": TOPOLOGY.memory_limit_mib + 300}, ""),
        ({"memory_mib": 8000}, f"memory mib: 8000 → {TOPOLOGY.memory_limit_mib}"),
        ({"models": ["bert"]}, "models: ['bert'] → ['bert', 'resnet50']"),
        ({"archives": {"bert": "another", "resnet50": None}}, "bert built again"),
        ({"precision": "int8", "models": []}, "models: [] → ['bert', 'resnet50']; precision: int8 → bf16"),
        ({"backends": {"bert": "openvino", "resnet50": None}}, "bert openvino → None"),
        ({"mode": "latency"}, "mode: latency → throughput"),
        ({"instances": 2}, "instances: 2 → None"),
        ({"what_comes_later": 1}, "what comes later: 1 → None"),
    ],
)  # fmt: skip
def test_what_makes_it_stale(facts, changes, said):
    tuned = make_tuned(facts)
    stale = replace(tuned, made_for={**tuned.made_for, **changes})
    assert explain_stale(stale, facts) == said


def test_tuned_without_a_quota_is_stale_under_one(facts):
    limited = replace(facts, machine=replace(TOPOLOGY, quota_cpus=1.5))
    assert explain_stale(make_tuned(facts), limited) == "quota cpus: None → 1.5"


def test_of_other_models_only_the_names_are_told(facts):
    """Nothing was built anew, and no backend changed."""
    tuned = make_tuned(facts)
    served = replace(facts, archives={"bert": facts.archives["bert"]})
    assert explain_stale(tuned, served) == "models: ['bert', 'resnet50'] → ['bert']"
    archives = {**tuned.made_for["archives"], "bert": "another"}
    stale = replace(tuned, made_for={**tuned.made_for, "archives": archives})
    assert explain_stale(stale, served).endswith("→ ['bert']; bert built again")


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        # The default by its name is a person's choice, which a tuned backend must not replace.
        ({"*": "ipex"}, "bert None → ipex, resnet50 None → ipex; openvino 2 → None"),
        ({"bert": "eager"}, "bert None → eager"),
    ],
)
def test_another_backend_makes_it_stale(facts, monkeypatch, backend, said):
    monkeypatch.setattr("config.tuned.version", lambda name: "2")
    tuned = make_tuned(facts)
    assert explain_stale(tuned, give(facts, backend=backend)) == said


@pytest.mark.parametrize(
    ("backend", "changed", "said"),
    [
        # It was not among the candidates.
        ({}, "openvino", "openvino 2 → 9"),
        ({}, "torch", "torch 2 → 9"),
        ({"*": "eager"}, "torch", "torch 2 → 9"),
        ({"*": "eager"}, "openvino", ""),
    ],
)
def test_another_version_of_what_may_compute_makes_it_stale(facts, monkeypatch, backend, changed, said):
    facts = give(facts, backend=backend)
    monkeypatch.setattr("config.tuned.version", lambda name: "2")
    tuned = make_tuned(facts)
    monkeypatch.setattr("config.tuned.version", lambda name: "9" if name == changed else "2")
    assert explain_stale(tuned, facts) == said


def test_it_holds_for_its_own_limit(facts):
    for limit_ms, said in ((None, ""), (200, ""), (100, "limit: 200 ms → 100 ms")):
        assert explain_stale(make_tuned(facts), give(facts, slo_p99_ms=limit_ms)) == said


def test_the_plan_has_the_numbers_and_cites_the_evidence(facts):
    plan = plan_machine(tuned=make_tuned(facts))
    instance, resnet50 = plan.instances["a1"], plan.models["resnet50"]
    assert (instance.worker_cpus, resnet50.batch_size, resnet50.max_batch_delay_ms) == (((0, 1),), 4, 3)
    for path in ("worker_cpus", "cores_per_worker", "resnet50.batch_size", "resnet50.max_batch_delay_ms"):
        assert plan.reasons[f"a1.{path}"] == f"tuned on this machine (tuned.json); resnet50: {EVIDENCE}"
    assert "workers" not in plan.settings


def test_its_limit_is_what_other_batches_are_planned_for():
    assert plan_machine(tuned=Tuned(limit={"percentile": 99, "ms": 50})).slo_p99_ms == 50
    assert plan_machine(tuned=Tuned(limit={"percentile": 99, "ms": 50}), slo_p99_ms=300).slo_p99_ms == 300


def test_what_is_not_in_it_is_as_ever(facts):
    """The default is right."""
    tuned = make_tuned(facts)
    assert plan_machine(tuned=replace(tuned, chosen={})) == plan_machine()
    one = plan_machine(tuned=replace(tuned, chosen={"batch": {"resnet50": 4}}))
    assert one.models["bert"] == plan_machine().models["bert"]


def test_what_a_person_gave_wins(facts):
    tuned = make_tuned(facts, chosen={**CHOSEN, "cores_per_worker": 1})
    plan = plan_machine(tuned=tuned, workers=2, instances=1, batch={"resnet50": 2}, delay_ms={"*": 7})
    resnet50 = plan.models["resnet50"]
    assert (resnet50.workers, resnet50.batch_size, resnet50.max_batch_delay_ms) == (2, 2, 7)


def test_instances_have_them_too(facts):
    plan = plan_machine(tuned=make_tuned(facts, chosen={"batch": {"bert": 3}, "workers": 2}))
    assert len(plan.instances) == 2
    for one in plan.instances.values():
        bert = one.models["bert"]
        assert (bert.batch_size, bert.workers, bert.maxconn) == (3, 1, 2 * 3)


def test_only_one_that_holds_is_used(facts, tmp_path):
    file = tmp_path / "tuned.json"
    assert judge_tuned(file, facts) == (NOT_TUNED, [])
    write_tuned(file, tuned := make_tuned(facts))
    assert judge_tuned(file, facts)[0] == tuned
    used, said = judge_tuned(file, give(facts, mode="latency"))
    assert used == NOT_TUNED
    assert "stale: mode: throughput → latency" in said[0]
