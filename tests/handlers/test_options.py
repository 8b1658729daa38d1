"""What the environment asks for, and how a wrong value is rejected."""

from __future__ import annotations

import contextlib
import json
from typing import ClassVar

import pytest

from handlers.backends import catalogue
from handlers.definition import Variant, read_folder
from handlers.image_classifier import ImageClassifier
from handlers.shared.errors import LoadError
from handlers.shared.options import LoadOptions, read_options


@pytest.fixture
def definition(tiny_image):
    """As where all could be built: without BF16 in the CPU IPEX has none."""
    known = read_folder(tiny_image)
    rules = {**known.precisions, "int8": known.precisions["bf16"]}
    variants = {name: Variant(data="synthetic") for name in ("ipex bf16", "eager bf16")}
    return known.model_copy(update={"precisions": rules, "variants": variants})


def became(definition, name, **what):
    variants = {**definition.variants, name: Variant(data="synthetic", **what)}
    return definition.model_copy(update={"variants": variants})


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
def test_wrong_values_are_rejected_by_their_name(definition, asked):
    with pytest.raises(LoadError, match=[*asked][-1]):
        read(definition, asked)
    with pytest.raises(LoadError, match="CPU_KIT_OPTIONS"):
        read(definition, CPU_KIT_OPTIONS="{")


def test_a_precision_that_was_not_built_elsewhere_is_cured_by_building_it_here(definition):
    definition = became(definition, "ipex bf16", not_built="no AVX-512", means=("avx2",))
    assert read(definition).precision == "fp32"
    with pytest.raises(LoadError, match=r"no AVX-512; .*MODELS=tiny_image BACKEND=ipex PRECISION=bf16"):
        read(definition, {"backend": "ipex", "precision": "bf16"})


def test_int8_that_would_saturate_here_is_cured_by_building_it_here(definition, monkeypatch):
    asked = {"backend": "ipex", "precision": "int8"}
    for wide_sums, here, good in ((True, True, True), (True, False, False), (False, False, True)):
        validated = became(definition, "ipex int8", accuracy={"wide_sums": wide_sums})
        monkeypatch.setattr(catalogue, "has_wide_sums", lambda here=here: here)
        assert read(validated).precision == "fp32"
        rejected = pytest.raises(
            LoadError, match=r"ipex int8 was calibrated on a CPU .* 32 bits.*PRECISION=int8"
        )
        with contextlib.nullcontext() if good else rejected:
            assert read(validated, asked).precision == "int8"


def test_a_precision_that_no_build_was_asked_for_is_cured_by_asking(definition):
    assert read(definition).precision == "fp32"
    assert read(definition, {"precision": "bf16"}).precision == "bf16"
    with pytest.raises(LoadError, match="MODELS=tiny_image BACKEND=ipex PRECISION=int8"):
        read(definition, {"backend": "ipex", "precision": "int8"})
    with pytest.raises(LoadError, match="eager has no int8: it has fp32, bf16; use PRECISION=fp32"):
        read(definition, {"precision": "int8"})


def test_another_backends_judgement_counts_for_nothing(definition):
    of_ipex = {"ipex bf16": definition.variants["ipex bf16"]}
    definition = definition.model_copy(update={"variants": of_ipex})
    assert read(definition, {"backend": "ipex", "precision": "bf16"}).backend == "ipex"
    with pytest.raises(LoadError, match="eager bf16 is not in the archive"):
        read(definition, {"backend": "eager", "precision": "bf16"})


class Limited(ImageClassifier):
    LIMITS: ClassVar[dict[str, int]] = {"pixels": 10, "frames": 1}


def test_the_plans_limits_replace_the_handlers_own_and_only_those_it_knows(definition, tiny_image):
    handler = Limited()
    handler.configure(definition, tiny_image)
    handler.adopt(LoadOptions(precision="fp32", backend="eager", threads=None, limits={"pixels": 5}))
    assert handler.limits == {"pixels": 5, "frames": 1}
    unknown = LoadOptions(precision="fp32", backend="eager", threads=None, limits={"tokens": 5})
    with pytest.raises(LoadError, match="limits must be among pixels, frames: got tokens; plan and build"):
        handler.adopt(unknown)
    assert Limited.LIMITS == {"pixels": 10, "frames": 1}
