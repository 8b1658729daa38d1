"""BACKEND, PRECISION and package sets: what computes each model, and what cannot be."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from config.errors import ConfigError
from config.planning import read_facts
from config.settings import Settings
from handlers.backends.catalogue import BACKENDS, DEFAULT, DEFAULT_SET, SETS, name_store
from handlers.shared.options import OPTIONAL_STEPS
from tests.config.planning import INSTALLED, find_machine, make_model, plan_machine, plan_one

ROOT = Path(__file__).resolve().parents[2]


def read_options(plan) -> dict:
    return json.loads(plan.environment["CPU_KIT_OPTIONS"])


@pytest.mark.parametrize(
    ("package_set", "backend", "backends"),
    [
        ("ipex", {}, ["ipex", "ipex"]), ("ipex", {"bert": "eager"}, ["eager", "ipex"]),
        ("ipex", {"*": "eager", "bert": "ipex"}, ["ipex", "eager"]), ("ipex", {"*": "eager"}, ["eager"] * 2),
        ("ipex", {"bert": "openvino", "resnet50": "eager"}, ["openvino", "eager"]),
        # of what nobody named, the first of the package set
        ("current", {}, ["openvino"] * 2), ("current", {"bert": "eager"}, ["eager", "openvino"]),
        ("current", {"*": "inductor"}, ["inductor"] * 2),
    ],
)  # fmt: skip
def test_each_model_has_its_backend_and_torchserves_switch_is_on_for_ipex(package_set, backend, backends):
    plan = plan_one(package_set=package_set, backend=backend)
    options, switch = read_options(plan), str("ipex" in backends).lower()
    assert [plan.models[name].backend for name in ("bert", "resnet50")] == backends
    assert [options[name]["backend"] for name in ("bert", "resnet50")] == backends
    assert plan.properties["ipex_enable"] == plan.worker_environment["TS_IPEX_ENABLE"] == switch


@pytest.mark.parametrize(
    ("flags", "given", "named"),
    [
        (("avx2",), {"precision": "int8", "backend": {"bert": "eager"}}, "int8 needs BACKEND=ipex or"),
        ((), {"precision": "int8"}, "PRECISION=int8 needs a CPU with avx2"),
        (("avx512f",), {"precision": "bf16", "backend": {"*": "eager"}}, "bf16 needs a CPU with one of"),
        # the default's, too, where another model has its own
        (("avx512f",), {"backend": {"bert": "eager"}}, "PRECISION=fp32 needs a CPU with avx2"),
    ],
)  # fmt: skip
def test_a_precision_needs_a_backend_that_has_it_and_a_cpu(flags, given, named):
    machine = dataclasses.replace(find_machine("two-cores"), flags=flags)
    with pytest.raises(ConfigError, match=named):
        plan_machine(machine, **given)
    assert plan_machine(machine, backend={"*": "eager"})


@pytest.mark.parametrize("switch", OPTIONAL_STEPS)
def test_a_step_that_a_backend_has_not_cannot_be_switched_off_of_it(switch):
    with pytest.raises(ConfigError, match=f"--off {switch} needs .*: got BACKEND=bert=openvino"):
        plan_machine(backend={"bert": "openvino"}, off=(switch, "packing"))


@pytest.mark.parametrize(
    ("backend", "off"),
    [
        ("ipex", OPTIONAL_STEPS), ("eager", OPTIONAL_STEPS), ("inductor", ("freeze",)),
        *((backend, ("packing", "buckets")) for backend in BACKENDS),
    ],
)  # fmt: skip
def test_what_a_backend_does_or_all_do_can_be_switched_off(backend, off):
    for step in off:
        plan = plan_one(backend={"*": backend}, off=(step,))
        assert [one["off"] for one in read_options(plan).values()] == [[step]] * 2
        assert {model.off for model in plan.models.values()} == {(step,)}


def test_a_handler_that_wants_its_model_eager_gets_that_alone():
    models = (make_model("own", freeze=False), make_model("resnet50"))
    for off in ((), ("packing",)):
        options = read_options(plan_one(models=models, backend={"own": "eager"}, off=off))
        assert options["own"]["off"] == sorted({*off, "trace", "freeze"})
        assert options["resnet50"].get("off", []) == [*off]
    with pytest.raises(ConfigError, match=r"BACKEND of own must be one of ipex, eager, .*: got openvino"):
        plan_one(models=models, backend={"own": "openvino"})


def test_a_backend_that_is_not_installed_is_rejected_on_this_machine():
    installed = dataclasses.replace(INSTALLED, missing_backends=frozenset({"openvino"}))
    with pytest.raises(ConfigError, match="BACKEND=bert=openvino needs openvino, which is not installed"):
        plan_machine(topology="", installed=installed, backend={"bert": "openvino"})
    assert plan_machine(topology="", installed=installed)
    assert plan_machine(installed=installed, backend={"bert": "openvino"}), "a recorded machine"


def test_a_variant_that_an_archive_lacks_is_named_with_its_build():
    model = make_model("m", {"fp32": 900, "int8": 900}, memory=make_model("m", {"fp32": 9}).memory)
    words = "ipex int8 is not in the archive of m: no build was asked for it; got ipex fp32, .*; do: "
    with pytest.raises(ConfigError, match=f"{words}make models MODELS=m BACKEND=ipex PRECISION=int8$"):
        plan_machine(models=(model,), precision="int8")
    lost = make_model("m", {"fp32": 9}, precisions=("fp32", "int8"), lost={"ipex int8": "no AVX2"})
    with pytest.raises(ConfigError, match="ipex int8 is not in the archive of m: no AVX2; got"):
        plan_machine(models=(lost,), precision="int8")
    with pytest.raises(ConfigError, match="PRECISION of m must be one of bf16: got fp32"):
        plan_machine(models=(make_model("m", {"bf16": 900}),))


def test_every_backend_has_a_set_with_what_it_needs():
    assert {backend for backends in SETS.values() for backend in backends} == {*BACKENDS}
    assert SETS[DEFAULT_SET][0] == DEFAULT
    for name, backends in SETS.items():
        pins = (ROOT / f"requirements/{name}/serve.in").read_text()
        for backend in backends:
            needed = BACKENDS[backend].distribution
            assert needed is None or f"\n{needed}==" in pins
    assert len({name_store(name) for name in SETS}) == len(SETS)


@pytest.mark.parametrize(
    ("written", "backend", "package_set"),
    [
        (None, {}, "ipex"), (None, {"bert": "eager", "resnet50": "ipex"}, "ipex"),
        (None, {"*": "openvino"}, "current"), (None, {"bert": "eager", "resnet50": "openvino"}, "current"),
        ({"location": "/x"}, {}, "ipex"), ({"set": "current"}, {}, "current"),
    ],
)  # fmt: skip
def test_an_environment_says_its_set_else_the_backends_do(tmp_path, written, backend, package_set):
    if written is not None:
        (tmp_path / "setup.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=f"no archive of .* in .*/{name_store(package_set)}[,;]"):
        read_facts(Settings(models=("bert", "no-such", "resnet50"), backend=backend, prefix=str(tmp_path)))


@pytest.mark.parametrize(("workers", "counted"), [(1, " --ninstances 1"), (2, "")])
def test_a_launcher_that_does_not_count_is_told(workers, counted):
    """TorchServe itself says how many there are where there is more than one."""
    args = f"--core_list 0,2,4,6 --ncores_per_instance {4 // workers}"
    for package_set, count in (("ipex", ""), ("current", counted)):
        plan = plan_one("cloud-adjacent-siblings", workers=workers, package_set=package_set)
        assert plan.properties["cpu_launcher_args"] == f"{args}{count} --enable_jemalloc"
