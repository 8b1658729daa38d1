"""What the environment asks for, and how a wrong value is refused."""

from __future__ import annotations

import contextlib
import json
from typing import ClassVar

import pytest

from handlers.backends import catalogue
from handlers.cpu_image_classifier import CpuImageClassifier
from handlers.shared.definition import parse_definition
from handlers.shared.errors import LoadError
from handlers.shared.options import LoadOptions, read_options


@pytest.fixture
def packed_definition(packed_definition):
    """As where all could be built: without BF16 in the CPU IPEX has none."""
    return {**packed_definition, "not_built": {}}


@pytest.fixture
def definition(packed_definition, tiny_image):
    return parse_definition(packed_definition, directory=tiny_image)


def read(definition, asked=None, **environment):
    if asked is not None:
        environment["CPU_KIT_OPTIONS"] = json.dumps({definition.name: asked})
    return read_options(definition, environment)


def test_without_environment_an_archive_serves_its_default_without_ipex(definition):
    assert read(definition) == LoadOptions(precision="fp32", backend="eager", threads=None)


def test_everything_asked_for_is_taken(definition):
    options = read(definition, {"precision": "bf16", "threads": 2, "off": ["freeze"]}, TS_IPEX_ENABLE="true")
    off = frozenset({"freeze"})
    assert options == LoadOptions(precision="bf16", backend="ipex", threads=2, off=off)


@pytest.mark.parametrize(
    "asked",
    [
        {"precision": "int3"},
        {"backend": "tpu"},
        {"threads": 0},
        {"batch": "4"},
        {"off": ["self_check"]},
        {"backend": "openvino", "off": ["freeze", "trace", "packing"]},
        {"limits": {"pixels": 0}},
        {"limits": [1]},
        {"precison": "fp32"},
    ],
)
def test_wrong_values_are_refused_by_their_name(definition, asked):
    with pytest.raises(LoadError, match=[*asked][-1]):
        read(definition, asked)
    with pytest.raises(LoadError, match="CPU_KIT_OPTIONS"):
        read(definition, CPU_KIT_OPTIONS="{")


def test_a_precision_that_was_not_built_elsewhere_is_cured_by_building_it_here(packed_definition, tiny_image):
    lacking = {**packed_definition, "not_built": {"ipex bf16": {"cause": "no AVX-512", "cpu": ["avx2"]}}}
    definition = parse_definition(lacking, directory=tiny_image)
    assert read(definition).precision == "fp32"
    with pytest.raises(LoadError, match=r"no AVX-512; .*MODELS=tiny_image BACKEND=ipex PRECISION=bf16"):
        read(definition, {"backend": "ipex", "precision": "bf16"})


def test_int8_that_would_saturate_here_is_cured_by_building_it_here(
    packed_definition, tiny_image, monkeypatch
):
    recipes = {**packed_definition["precisions"], "int8": {"self_check_relative_error": 0.3}}
    judged = {**packed_definition["judged_with"], "ipex int8": "synthetic"}
    packed = {**packed_definition, "precisions": recipes, "judged_with": judged}
    asked = {"backend": "ipex", "precision": "int8"}
    for wide_sums, here, good in ((True, True, True), (True, False, False), (False, False, True)):
        packed["accuracy"] = {"ipex int8": {"wide_sums": wide_sums}}
        monkeypatch.setattr(catalogue, "has_wide_sums", lambda here=here: here)
        definition = parse_definition(packed, directory=tiny_image)
        assert read(definition).precision == "fp32"
        refused = pytest.raises(
            LoadError, match=r"ipex int8 was calibrated on a CPU .* 32 bits.*PRECISION=int8"
        )
        with contextlib.nullcontext() if good else refused:
            assert read(definition, asked).precision == "int8"


def test_a_precision_that_no_build_was_asked_for_is_cured_by_asking(packed_definition, tiny_image):
    recipes = {"int8": {"self_check_relative_error": 0.3}}
    packed = {**packed_definition, "precisions": {**packed_definition["precisions"], **recipes}}
    definition = parse_definition(packed, directory=tiny_image)
    assert read(definition).precision == "fp32"
    assert read(definition, {"precision": "bf16"}).precision == "bf16"
    with pytest.raises(LoadError, match="MODELS=tiny_image BACKEND=ipex PRECISION=int8"):
        read(definition, {"backend": "ipex", "precision": "int8"})
    with pytest.raises(LoadError, match="eager has no int8: it has fp32, bf16; use PRECISION=fp32"):
        read(definition, {"precision": "int8"})


def test_another_backends_judgement_counts_for_nothing(packed_definition, tiny_image):
    judged = {name: "synthetic" for name in packed_definition["judged_with"] if name != "eager bf16"}
    definition = parse_definition({**packed_definition, "judged_with": judged}, directory=tiny_image)
    assert read(definition, {"backend": "ipex", "precision": "bf16"}).backend == "ipex"
    with pytest.raises(LoadError, match="eager bf16 is not in the archive"):
        read(definition, {"backend": "eager", "precision": "bf16"})


class Limited(CpuImageClassifier):
    LIMITS: ClassVar[dict[str, int]] = {"pixels": 10, "frames": 1}


def test_the_plans_limits_replace_the_handlers_own_and_only_those_it_knows(definition):
    handler = Limited()
    handler.configure(definition)
    handler.adopt(LoadOptions(precision="fp32", backend="eager", threads=None, limits={"pixels": 5}))
    assert handler.limits == {"pixels": 5, "frames": 1}
    unknown = LoadOptions(precision="fp32", backend="eager", threads=None, limits={"tokens": 5})
    with pytest.raises(LoadError, match="limits must be among pixels, frames: got tokens; plan and build"):
        handler.adopt(unknown)
    assert Limited.LIMITS == {"pixels": 10, "frames": 1}
