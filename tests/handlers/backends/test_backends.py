"""Each backend tells its own graph from all others; a new one is an entry and a file."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from handlers.backends import openvino as openvino_backend
from handlers.backends.catalogue import (
    BACKENDS,
    DEFAULT_SET,
    WIDE_SUMS,
    find_asked,
    find_missing,
    has_flags,
    parse_backend,
    render_backend,
)
from handlers.backends.loader import open_loader
from handlers.backends.openvino import choose_precision
from handlers.backends.proofs import FROZEN
from handlers.image_classifier import ImageClassifier
from tests.handlers.backends.toy import ENTRY
from tests.handlers.context import FakeContext


def as_planned(threads: int = 2, pinning: str = "False") -> dict[str, str]:
    return {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": pinning}


def openvino(properties: Mapping[str, str] | None = None, **layers: int) -> dict[str, Any]:
    operators = {f"Convolution {precision}": count for precision, count in layers.items()}
    operators |= {"FullyConnected i8": 1} if "u8" in layers else {}
    return {
        "kind": "openvino",
        "operators": {**operators, "Reorder f32": 9},
        "properties": as_planned() if properties is None else properties,
    }


def ipex(**operators: int) -> dict[str, Any]:
    return {"kind": FROZEN, "operators": {"aten::relu": 1}, **operators}


@pytest.mark.parametrize(
    ("flags", "wanted", "has"),
    [
        ("sse2 avx2", (), True),
        ("sse2 avx2", WIDE_SUMS, False),
        ("sse2 avx2 avx_vnni", WIDE_SUMS, True),
        ("avx2 avx512_vnni", WIDE_SUMS, True),
        ("avx2", ("avx",), False),
    ],
)
def test_a_flag_is_a_whole_word_of_the_cpus(tmp_path, flags, wanted, has):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags\t\t: {flags}\n")
    assert has_flags(wanted, cpuinfo) is has


@pytest.mark.parametrize(("wide", "fix"), [(True, "FIRST_LAYER"), (False, "ENABLE")])
def test_openvinos_weights_have_seven_bits_where_sums_would_saturate(monkeypatch, wide, fix):
    pytest.importorskip("nncf", reason="of the other package set: make test-current")
    monkeypatch.setattr(openvino_backend, "has_wide_sums", lambda: wide)
    made = openvino_backend._make_parameters()
    assert getattr(made.overflow_fix, "name", made.overflow_fix or "FIRST_LAYER") == fix


@pytest.mark.parametrize("convolutional", [True, False])
def test_openvino_leaves_a_convolutional_models_last_layer(tmp_path, convolutional):
    """Features of other images than those of the calibration would be cut."""
    pytest.importorskip("nncf", reason="of the other package set: make test-current")
    import openvino

    pooled = (torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    state = SimpleNamespace(
        model=torch.nn.Sequential(*pooled, torch.nn.Linear(8, 4)).eval(),
        trace_inputs=(torch.rand(1, 3, 16, 16),),
        task=SimpleNamespace(convolutional=convolutional),
    )
    calibration: Any = SimpleNamespace(
        load_eager=lambda: state, batch=lambda state, _: (state.trace_inputs for _ in range(8))
    )
    quantiser = openvino_backend.NncfQuantiser(calibration, convolutional=convolutional)
    for name, body in quantiser.make(openvino_backend.RECIPES[0]).files.items():
        (tmp_path / name).write_bytes(body)
    graph = openvino.Core().read_model(tmp_path / "openvino-int8.xml")
    weights = {op.get_type_name(): op.input_value(1).get_node() for op in graph.get_ops() if op.inputs()[1:]}
    kinds = {name: weights[name].get_type_name() for name in ("Convolution", "MatMul")}
    scaled, plain = "Multiply", "Constant"
    assert kinds == {"Convolution": scaled, "MatMul": plain if convolutional else scaled}


EAGER = {"kind": FROZEN, "operators": {"aten::conv2d": 53}}


@pytest.mark.parametrize(
    ("backend", "precision", "graph", "good"),
    [
        ("eager", "fp32", EAGER, True),
        ("eager", "fp32", {"kind": "eager", "operators": {}}, False),
        ("eager", "fp32", {"kind": FROZEN, "operators": {"ipex_prepack::linear_run": 1}}, False),
        ("ipex", "fp32", ipex(prepacked=9, fused=3), True),
        ("ipex", "fp32", EAGER, False),
        ("ipex", "fp32", ipex(prepacked=9, fused=0), False),
        ("ipex", "fp32", {**ipex(prepacked=9, fused=0), "fuses": False}, True),
        ("ipex", "fp32", {"kind": "eager", "fuses": False}, False),
        ("ipex", "fp32", ipex(prepacked=0, fused=3), False),
        ("ipex", "int8", ipex(prepacked=0, fused=3), True),
        ("ipex", "int8", ipex(prepacked=9, fused=0), False),
        ("ipex", "int8", openvino(u8=53), False),
        ("openvino", "fp32", openvino(f32=53), True),
        ("openvino", "fp32", openvino(f32=52, bf16=1), False),
        ("openvino", "bf16", openvino(bf16=53), True),
        ("openvino", "bf16", openvino(f32=53), False),
        ("openvino", "int8", openvino(u8=53), True),
        ("openvino", "int8", openvino(u8=40, f32=13), True),
        ("openvino", "int8", openvino(u8=10, f32=43), False),
        ("openvino", "int8", openvino(f32=53), False),
        ("openvino", "int8", openvino(as_planned(threads=4), u8=53), False),
        ("openvino", "int8", openvino(as_planned(pinning="True"), u8=53), False),
        ("openvino", "fp32", openvino(), False),
        ("openvino", "fp32", EAGER, False),
        ("openvino", "fp32", {}, False),
    ],
)
def test_a_backend_is_known_by_what_executes(backend, precision, graph, good):
    proof = BACKENDS[backend].judge(graph, precision=precision, threads=2, off=frozenset())
    assert proof.good is good, proof
    assert proof.expected
    assert proof.actual


def test_a_new_backend_is_an_entry_and_a_file(tiny_image, monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", ENTRY)
    monkeypatch.setenv("CPU_KIT_OPTIONS", '{"tiny_image": {"backend": "toy"}}')
    handler = ImageClassifier()
    handler.initialize(FakeContext(tiny_image))
    told = handler.describe()
    assert [step["name"] for step in told["steps"]] == ["build_eager", "toy", "warm_up", "self_check"]
    assert told["backend"]["name"] == "toy"
    assert told["memory_format"]["applicable"] is False
    proof = BACKENDS["toy"].judge(told["graph"], precision="fp32", threads=1, off=frozenset())
    assert proof.good
    assert parse_backend("toy") == {"": "toy"}


@pytest.mark.parametrize("name", BACKENDS)
def test_what_the_catalogue_says_is_what_the_loader_does(name):
    backend, steps = BACKENDS[name], {step.name for step in open_loader(name).steps}
    assert backend.switches <= steps
    assert {*backend.files} <= {"fp32", "bf16", "int8"}
    assert backend.compiles_without in {"", *backend.switches}


@pytest.mark.parametrize(
    ("text", "chosen", "of_bert"),
    [
        ("", "", "ipex"),
        ("eager", "eager", "eager"),
        ("resnet50=ipex,bert=openvino", "bert=openvino,resnet50=ipex", "openvino"),
        ("eager bert=openvino", "eager,bert=openvino", "openvino"),
        ("resnet50=eager", "resnet50=eager", "ipex"),
    ],
)
def test_backend_is_for_all_or_by_model(text, chosen, of_bert):
    assert render_backend(parse_backend(text)) == chosen
    assert find_asked(parse_backend(text), "bert", DEFAULT_SET) == of_bert


def test_which_backends_are_installed(tmp_path):
    """By the packages' metadata alone: nothing is imported."""
    needing = {name: one.distribution for name, one in BACKENDS.items() if one.distribution}
    assert {"ipex", "openvino"} <= {*needing}
    assert find_missing([str(tmp_path)]) == find_missing([]) == {*needing}
    (tmp_path / "openvino-2026.4.0.dist-info").mkdir()
    (tmp_path / "openvino-2026.4.0.dist-info" / "METADATA").write_text("Name: openvino\nVersion: 2026.4.0\n")
    missing = find_missing([str(tmp_path)])
    assert missing == {*needing} - {"openvino"}
    assert not BACKENDS["ipex"].is_installed([])
    assert BACKENDS["eager"].is_installed([])


@pytest.mark.parametrize(
    ("precision", "offered", "tiles", "hint", "fused"),
    [
        ("int8", ["FP32", "INT8", "BF16"], False, "bf16", True),
        ("int8", ["FP32", "INT8", "BF16"], True, "bf16", False),
        ("int8", ["FP32", "INT8"], True, "f32", True),
        ("fp32", ["FP32", "INT8", "BF16"], True, "f32", True),
        ("bf16", ["FP32", "BF16"], True, "bf16", True),
    ],
)
def test_openvino_computes_int8s_rest_in_bf16_where_the_cpu_has_it(precision, offered, tiles, hint, fused):
    """Without its fused attention where that is wrong: test_trained_backends.py on such a CPU."""
    options = choose_precision(precision, offered, tiles=tiles)
    assert options.pop("INFERENCE_PRECISION_HINT") == hint
    assert options == ({} if fused else {"SNIPPETS_MODE": "DISABLE"})
