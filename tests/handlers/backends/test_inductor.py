"""Inductor's library is compiled once for all shapes, rejected if it cannot run, told from all else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from handlers.backends.catalogue import BACKENDS
from handlers.backends.inductor_library import read_cpu_flags
from handlers.backends.loader import Calibration, LoadState, Made, open_loader
from handlers.backends.proofs import COMPILED, count_products
from handlers.backends.proofs import LIBRARY as KIND
from handlers.definition import Precision
from handlers.shared.errors import LoadError
from handlers.shared.options import LoadOptions
from handlers.shared.shapes import Shape, ShapeGrid
from handlers.shared.steps import StepError, build_graph, run_steps
from models.gate.trials import write_made
from tests.handlers.stub import StubHandler

INDUCTOR = BACKENDS["inductor"]
LIBRARY, RECORD = INDUCTOR.files["fp32"]
LOADER = open_loader("inductor")
THREADS = torch.get_num_threads()
needs_pt2e = pytest.mark.skipif("int8" not in INDUCTOR.flags, reason="no quantiser of exports is installed")


LOOSE = {"answer_relative": 1.0, "answer_absolute": 1.0}


class TinyImages(StubHandler):
    """A convolution, a linear layer; a sample is the seed of its image."""

    convolutional = True

    def __init__(self, directory: Path, recipe: dict[str, Any] | None = None) -> None:
        super().__init__()
        allowed = {"fp32": 1e-3, "int8": 0.1}
        precisions = {
            name: Precision(**LOOSE, self_check_relative_error=error, backends={"inductor": recipe or {}})
            for name, error in allowed.items()
        }
        self.definition = SimpleNamespace(
            name="tiny", precisions=precisions, find_accuracy=lambda variant: None
        )
        self.model_dir = directory
        self.layout = ShapeGrid(batch_sizes=(1, 2, 4))

    def adopt(self, options: LoadOptions) -> None:
        """No limits."""

    def measure(self, sample: int) -> int:
        return 0

    def load_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten())
        return torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 3)).eval()

    def collate(self, samples: Sequence[int]) -> torch.Tensor:
        seeds = [torch.Generator().manual_seed(seed) for seed in samples]
        return torch.stack([torch.rand(3, 8, 8, generator=seed) for seed in seeds])


def load(
    directory: Path,
    backend: str,
    recipe: dict[str, Any] | None = None,
    precision: str = "fp32",
    off: frozenset[str] = frozenset(),
) -> LoadState:
    off = frozenset({"channels_last", "trace", "freeze"}) if backend == "eager" else off
    options = LoadOptions(precision=precision, backend=backend, threads=None, off=off)
    task = TinyImages(directory, recipe)
    return LoadState(task=task, options=options, loader=open_loader(backend))


def load_eager(directory: Path, recipe: dict[str, Any] | None = None) -> LoadState:
    state = load(directory, "eager", recipe)
    build_graph(state)
    return state


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library and its record."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile with")
    folder = tmp_path_factory.mktemp("compiled")
    write_made(LOADER.prepare(load_eager(folder), "fp32"), folder)
    return folder


def batch(state: LoadState, count: int | None) -> Iterator[tuple[torch.Tensor, ...]]:
    return (state.inputs(shape) for shape in state.task.layout.list_shapes())


def make_int8(folder: Path) -> Made:
    calibration = Calibration(directory=folder, load_eager=lambda: load_eager(folder), batch=batch)
    quantiser = LOADER.make_quantiser(calibration, convolutional=True)
    return quantiser.make(quantiser.recipes[1])


@pytest.fixture
def own(compiled: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy, to be spoilt."""
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_one_library_answers_as_eager_does_in_all_shapes(compiled):
    state = load(compiled, "inductor")
    records = run_steps(state)  # self_check compares every shape
    assert [one.name for one in records][1:3] == ["check_library", "freeze"]
    assert len(state.warmed) == 3
    graph = state.facts["graph"]
    assert count_products(graph["operators"], "fp32") == (2, 0)
    assert INDUCTOR.judge(graph, precision="fp32", threads=THREADS, off=frozenset()).good


def test_without_freeze_the_worker_compiles_the_model_itself(tmp_path):
    """No library is there, and none is looked for."""
    off = frozenset({"freeze"})
    state = load(tmp_path, "inductor", off=off)
    records = {one.name: one.status for one in run_steps(state)}
    assert (records["check_library"], records["freeze"], records["compile"]) == (
        "not applicable",
        "off",
        "applied",
    )
    graph = state.facts["graph"]
    packed, others = count_products(graph["operators"], "fp32")
    assert (graph["kind"], packed, others > 0) == (COMPILED, 0, True)
    assert INDUCTOR.judge(graph, precision="fp32", threads=THREADS, off=off).good
    assert not INDUCTOR.judge(graph, precision="fp32", threads=THREADS, off=frozenset()).good
    assert not any(tensor.requires_grad for tensor in state.warmed.values())


@needs_pt2e
@pytest.mark.parametrize(("wide", "highest"), [(True, 255), (False, 127)])
def test_activations_have_seven_bits_where_sums_would_saturate(monkeypatch, wide, highest):
    from handlers.backends import inductor_int8

    monkeypatch.setattr(inductor_int8, "has_wide_sums", lambda: wide)
    for recipe in inductor_int8.RECIPES:
        config = inductor_int8.make_quantizer(recipe).global_config
        assert (config.input_activation.quant_min, config.input_activation.quant_max) == (0, highest)


@needs_pt2e
def test_int8_multiplies_in_int8_in_all_shapes(compiled, tmp_path):
    write_made(make_int8(tmp_path), tmp_path)
    state = load(tmp_path, "inductor", precision="int8")
    run_steps(state)
    graph = {**state.facts["graph"], "compiled_here": 0}  # the export was counted, and a worker makes none
    assert count_products(graph["operators"], "int8") == (2, 0)
    assert INDUCTOR.judge(graph, precision="int8", threads=THREADS, off=frozenset()).good


@needs_pt2e
def test_a_graph_that_pytorch_did_not_quantise_is_rejected(tmp_path, monkeypatch):
    """As by a quantizer that finds nothing to do, of which PyTorch says no word."""
    from handlers.backends import inductor_int8
    from handlers.backends.inductor_int8 import RECIPES, quantise_export

    monkeypatch.setattr(inductor_int8, "make_quantizer", lambda _: inductor_int8.x86.X86InductorQuantizer())
    state = load_eager(tmp_path)
    inputs = state.inputs(Shape(batch_size=2))
    graph = torch.export.export(state.model, inputs, strict=True).module()
    with pytest.raises(LoadError, match="PyTorch quantised 0 of 2 products by weights; use PRECISION=bf16"):
        quantise_export(graph, recipe=RECIPES[1], batches=[inputs])


def change_record(folder: Path, **changes: Any) -> None:
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({**record, **changes}))


def name_another_cpu(folder: Path) -> None:
    """It is rejected before its code runs."""
    change_record(folder, cpu_flags=[*read_cpu_flags(), "amx_fp64"])
    (folder / LIBRARY).write_bytes(b"nothing that could be opened")


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (name_another_cpu, r"for a CPU with amx_fp64, which .* BACKEND=inductor"),
        (lambda folder: change_record(folder, torch="1.0"), r"for torch 1\.0, and this is"),
        (lambda folder: (folder / LIBRARY).open("ab").write(b"\0"), "is not what was compiled"),
    ],
)
def test_a_library_that_is_not_for_here_is_rejected(own, spoil, cause):
    spoil(own)
    with pytest.raises(StepError, match=cause):
        run_steps(load(own, "inductor"))


def graph(**changes: Any) -> dict[str, Any]:
    """What a BF16 worker describes, but for what is changed."""
    sound = {
        "kind": KIND,
        "operators": {"_linear_pointwise": 3, "mkldnn__convolution_pointwise_binary": 4, "bmm_out": 2},
        "weights": {"bfloat16": 9, "float32": 5},
        "library": {"sha256": "a", "built": "a", "cpu_lacks": []},
        "threads": 2,
        "compiled_here": 0,
    }
    return {**sound, **changes}


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"kind": "eager", "operators": {"aten::convolution": 4, "aten::addmm": 3}, "weights": {}}, False),
        ({"operators": {"_linear_pointwise": 3, "addmm_out": 1}}, False),
        ({"operators": {"generated": 9}}, False),
        ({"weights": {"float32": 14}}, False),
        ({"library": {"sha256": "a", "built": "b", "cpu_lacks": []}}, False),
        ({"library": {"sha256": "a", "built": "a", "cpu_lacks": ["amx_int8"]}}, False),
        ({"library": {}}, False),
        ({"threads": 1}, False),
        ({"compiled_here": 1}, False),
        ({"compiled_here": None}, False),
    ],
)
def test_what_executes_is_validated(changes, good):
    proof = INDUCTOR.judge(graph(**changes), precision="bf16", threads=2, off=frozenset())
    assert proof.good is good, proof


@pytest.mark.parametrize(
    ("weights", "good"), [({"float32": 9}, True), ({"bfloat16": 1, "float32": 9}, False)]
)
def test_fp32_has_no_narrower_weights(weights, good):
    proof = INDUCTOR.judge(graph(weights=weights), precision="fp32", threads=2, off=frozenset())
    assert proof.good is good, proof


@pytest.mark.parametrize(
    ("operators", "weights", "good"),
    [
        ({"_qlinear_pointwise_tensor": 2, "_qconv2d_pointwise_binary_tensor": 1}, {"int8": 3}, True),
        ({"_qlinear_pointwise_tensor": 2, "_linear_pointwise": 1}, {"int8": 3}, False),
        ({"_qlinear_pointwise_tensor": 3}, {"int8": 2, "float32": 1}, False),
        ({"_linear_pointwise": 3}, {"int8": 3}, False),
    ],
)
def test_int8_is_int8_throughout(operators, weights, good):
    seen = graph(operators=operators, weights=weights)
    proof = INDUCTOR.judge(seen, precision="int8", threads=2, off=frozenset())
    assert proof.good is good, proof
