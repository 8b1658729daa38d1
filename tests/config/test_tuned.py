"""tuned.json: there and back, what makes it stale, and how its numbers and a person's own reach the plan."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from importlib.metadata import version

import pytest

from config.errors import ConfigError
from config.plan import Inputs
from config.rules.site import make_site
from config.topology import read_topology
from config.tuned import Tuned, describe_present, explain_stale, read_tuned, write_tuned
from tests.config.planning import INSTALLED, MACHINES, MODELS, make_inputs

TOPOLOGY = read_topology(MACHINES / "two-cores")
EVIDENCE = "160/s at p99 ≤ 200 ms against 103/s of the default (1.55x, 1.49-1.61), trials in results/x"
SUMS = b"of all that is packed\n"
CHOSEN = {
    "workers": 1,
    "cores_per_worker": 2,
    "batch": {"resnet50": 4},
    "delay_ms": {"resnet50": 3},
}


@pytest.fixture
def inputs(tmp_path) -> Inputs:
    """With an archive of one of the models."""
    with zipfile.ZipFile(tmp_path / "bert.mar", "w") as archive:
        archive.writestr("SHA256SUMS", SUMS)
    return make_inputs(model_store=str(tmp_path), precision="bf16")


def make_tuned(inputs: Inputs, **changes) -> Tuned:
    return replace(
        Tuned(
            made_for=describe_present(TOPOLOGY, inputs),
            limit={"percentile": 99, "ms": 200},
            chosen=CHOSEN,
            evidence={"resnet50": EVIDENCE},
        ),
        **changes,
    )


def plan(inputs: Inputs, tuned: Tuned):
    return make_site(TOPOLOGY, MODELS, inputs, INSTALLED, tuned=tuned).plan


def test_there_and_back(inputs, tmp_path):
    tuned = make_tuned(inputs)
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
        '{"schema": 2}',
        '{"schema": 1, "made_for": {}, "limit": {}, "evidence": {}, "chosen": {"threads": 2}}',
    ],
)
def test_a_file_that_is_no_tuned_plan(tmp_path, text):
    file = tmp_path / "tuned.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"; remove it, or give TUNED=0$"):
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
        ({"archives": {"bert": "another", "resnet50": None}}, "archives: bert built anew"),
        ({"precision": "int8", "models": []}, "models: [] → ['bert', 'resnet50']; precision: int8 → bf16"),
        ({"backends": {"bert": "openvino", "resnet50": None}}, "bert openvino → None"),
        ({"profile": "latency"}, "profile: latency → throughput"),
        ({"instances": 2}, "instances: 2 → None"),
        ({"what_comes_later": 1}, "what comes later: 1 → None"),
    ],
)  # fmt: skip
def test_what_makes_it_stale(inputs, changes, said):
    tuned = make_tuned(inputs)
    stale = replace(tuned, made_for={**tuned.made_for, **changes})
    assert explain_stale(stale, TOPOLOGY, inputs) == said


def test_tuned_without_a_quota_is_stale_under_one(inputs):
    tuned = make_tuned(inputs)
    assert explain_stale(tuned, replace(TOPOLOGY, quota_cpus=1.5), inputs) == "quota cpus: None → 1.5"


def test_of_other_models_only_the_names_are_told(inputs):
    """Nothing was built anew, and no backend changed."""
    tuned = make_tuned(inputs)
    served = replace(inputs, models=("bert",))
    assert explain_stale(tuned, TOPOLOGY, served) == "models: ['bert', 'resnet50'] → ['bert']"
    archives = {**tuned.made_for["archives"], "bert": "another"}
    stale = replace(tuned, made_for={**tuned.made_for, "archives": archives})
    assert explain_stale(stale, TOPOLOGY, served).endswith("→ ['bert']; archives: bert built anew")


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        # The default by its name is a person's choice, which a tuned backend must not replace.
        ("ipex", "bert None → ipex, resnet50 None → ipex; openvino 2 → None"),
        ("bert=eager", "bert None → eager"),
    ],
)
def test_another_backend_makes_it_stale(inputs, monkeypatch, backend, said):
    monkeypatch.setattr("config.tuned.version", lambda name: "2")
    tuned = make_tuned(inputs)
    assert explain_stale(tuned, TOPOLOGY, replace(inputs, backend=backend)) == said


def test_it_is_stale_once_another_backend_is_there(inputs, monkeypatch):
    """It was not raced."""
    there = {"openvino": "2026.4"}
    monkeypatch.setattr("config.tuned.version", lambda name: "2" if name != "openvino" else there[name])
    tuned = make_tuned(inputs, chosen={"variant": {"bert": "ipex int8"}})
    assert explain_stale(tuned, TOPOLOGY, inputs) == ""
    there["openvino"] = "2026.5"
    assert explain_stale(tuned, TOPOLOGY, inputs) == "openvino 2026.4 → 2026.5"


def test_a_backend_that_is_not_used_may_change(inputs, monkeypatch):
    inputs = replace(inputs, backend="eager")
    tuned = make_tuned(inputs)
    monkeypatch.setattr("config.tuned.version", lambda name: "9" if name == "openvino" else version(name))
    assert explain_stale(tuned, TOPOLOGY, inputs) == ""


def test_other_versions_make_it_stale(inputs, monkeypatch):
    tuned = make_tuned(inputs)
    was = tuned.made_for["versions"]["torch"]
    monkeypatch.setattr("config.tuned.version", lambda name: "9")
    assert f"torch {was} → 9" in explain_stale(tuned, TOPOLOGY, inputs)


@pytest.mark.parametrize(
    ("asked", "said"),
    [(None, ""), (200, ""), (100, "limit: 200 ms → 100 ms"), (500, "limit: 200 ms → 500 ms")],
)
def test_it_holds_for_its_own_limit(inputs, asked, said):
    assert explain_stale(make_tuned(inputs), TOPOLOGY, replace(inputs, slo_p99_ms=asked)) == said


def test_the_plan_has_the_numbers_and_cites_the_evidence(inputs):
    planned = plan(inputs, make_tuned(inputs))
    resnet50 = planned.models["resnet50"]
    settings = (
        planned.layout.workers_per_model,
        planned.layout.cores_per_worker,
        resnet50.batch_size,
        resnet50.max_batch_delay_ms,
    )
    assert [setting.value for setting in settings] == [1, 2, 4, 3]
    assert all(
        f"tuned on this machine (tuned.json); resnet50: {EVIDENCE}" in one.reason for one in settings[1:]
    )
    assert planned.inputs == inputs


def test_what_is_not_in_it_is_as_ever(inputs):
    """The default is right."""
    tuned = make_tuned(inputs)
    assert plan(inputs, replace(tuned, chosen={})) == plan(inputs, Tuned())
    one = replace(tuned, chosen={"batch": {"resnet50": 4}})
    assert plan(inputs, one).models["bert"].batch_size == plan(inputs, Tuned()).models["bert"].batch_size


def test_what_a_person_gave_wins(inputs):
    given = replace(inputs, workers=2, instances=1, batch="resnet50=2", delay_ms="7")
    planned = plan(given, make_tuned(inputs, chosen={**CHOSEN, "cores_per_worker": 1}))
    resnet50 = planned.models["resnet50"]
    numbers = (planned.layout.workers_per_model, resnet50.batch_size, resnet50.max_batch_delay_ms)
    assert [setting.value for setting in numbers] == [2, 2, 7]


def test_instances_have_them_too(inputs):
    tuned = make_tuned(inputs, chosen={"batch": {"bert": 3}, "workers": 2})
    site = make_site(TOPOLOGY, MODELS, inputs, INSTALLED, tuned=tuned)
    assert site.plan.inputs == inputs
    for one in site.instances.values():
        assert (one.models["bert"].batch_size.value, one.layout.workers_per_model.value) == (3, 1)
    assert site.plan.door["bert.a1.maxconn"].value == 2 * 3
