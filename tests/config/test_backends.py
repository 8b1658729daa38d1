"""BACKEND: each model's backend, its reason, and what cannot be."""

from __future__ import annotations

import dataclasses
import json

import pytest

from config.errors import ConfigError
from config.rules.site import make_site
from config.topology import read_topology
from handlers.backends.catalogue import BACKENDS
from handlers.shared.options import OPTIONAL_STEPS
from tests.config.planning import INSTALLED, MACHINES, MODELS, make_inputs, make_model, plan_machine


def test_each_model_has_its_backend_in_the_plan_and_in_its_workers_options():
    plan = plan_machine("two-cores", backend="bert=openvino,resnet50=ipex")
    assert {name: model.backend.value for name, model in plan.models.items()} == {
        "bert": "openvino",
        "resnet50": "ipex",
    }
    assert plan.models["bert"].backend.reason.startswith("asked for: ")
    options = json.loads(plan.environment["CPU_KIT_OPTIONS"].value)
    assert {name: one["backend"] for name, one in options.items()} == {"bert": "openvino", "resnet50": "ipex"}


@pytest.mark.parametrize(
    ("backend", "switch"), [("", "true"), ("bert=eager", "true"), ("eager", "false"), ("openvino", "false")]
)
def test_torchserves_switch_is_on_where_a_model_is_computed_by_ipex(backend, switch):
    plan = plan_machine("two-cores", backend=backend)
    assert plan.properties["ipex_enable"].value == switch
    assert plan.worker_environment["TS_IPEX_ENABLE"].value == switch


@pytest.mark.parametrize("backend", ["eager", "bert=eager"])
def test_a_precision_is_asked_of_each_models_backend(backend):
    with pytest.raises(ConfigError, match="PRECISION=int8 needs BACKEND=ipex or openvino"):
        plan_machine("two-cores", backend=backend, precision="int8")


def test_the_default_is_judged_too_where_another_model_has_its_own():
    plain = dataclasses.replace(read_topology(MACHINES / "two-cores"), flags=("avx512f",))
    assert plan_machine(plain, backend="eager").models
    with pytest.raises(ConfigError, match="PRECISION=fp32 needs a CPU with avx2"):
        plan_machine(plain, backend="bert=eager")


@pytest.mark.parametrize("switch", OPTIONAL_STEPS)
@pytest.mark.parametrize("backend", ["openvino", "bert=openvino"])
def test_a_step_that_a_backend_has_not_cannot_be_left_out_of_it(backend, switch):
    with pytest.raises(ConfigError, match=f"--off {switch} needs .*: got BACKEND=bert=openvino"):
        plan_machine("two-cores", backend=backend, off=(switch, "packing"))


@pytest.mark.parametrize(
    ("backend", "off"),
    [
        *((backend, (switch,)) for backend in ("ipex", "eager") for switch in OPTIONAL_STEPS),
        ("inductor", ("freeze",)),
        *((backend, (switch,)) for backend in BACKENDS for switch in ("packing", "buckets")),
    ],
)
def test_what_a_backend_does_or_all_do_can_be_left_out(backend, off):
    options = json.loads(
        plan_machine("two-cores", backend=backend, off=off).environment["CPU_KIT_OPTIONS"].value
    )
    assert {name: one["off"] for name, one in options.items()} == {"bert": [*off], "resnet50": [*off]}


def test_a_handler_that_wants_its_model_eager_gets_that_alone():
    models = (make_model("own", freeze=False), make_model("resnet50"))
    for off in ((), ("packing",)):
        plan = plan_machine("two-cores", models, backend="own=eager", off=off)
        options = json.loads(plan.environment["CPU_KIT_OPTIONS"].value)
        assert options["own"]["off"] == sorted({*off, "trace", "freeze"})
        assert options["resnet50"].get("off", []) == [*off]
    assert "freeze = False: own" in plan.environment["CPU_KIT_OPTIONS"].reason
    with pytest.raises(ConfigError, match=r"BACKEND of own must be one of ipex, eager, .*: got openvino"):
        plan_machine("two-cores", models, backend="own=openvino")


def test_a_backend_that_is_not_installed_is_refused_on_this_machine():
    installed = dataclasses.replace(INSTALLED, missing_backends=frozenset({"openvino"}))
    topology = read_topology(MACHINES / "two-cores")
    asked = make_inputs(backend="bert=openvino", topology="live")
    with pytest.raises(ConfigError, match="BACKEND=bert=openvino needs openvino, which is not installed"):
        make_site(topology, MODELS, asked, installed)
    assert make_site(topology, MODELS, make_inputs(topology="live"), installed).plan.models
