"""OpenVINO: Intel's runtime with a graph (IR) and kernels of its own, made from the eager model at build.

The IR stands beside the weights in the archive: converting took 7 s (ResNet50) and 8 s (BERT) of a core at
each start of each worker, reading it takes 0.1 s. BF16 is FP32's IR with another execution precision; INT8
has been through NNCF. Shapes are open, and a load warms those that are served.
Source: openvino.Core.compile_model, its CPU plug-in's properties, nncf.quantize (seen in 2026.4 and 3.4).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handlers.backends.catalogue import BACKENDS, has_flags, has_wide_sums
from handlers.backends.loader import Calibration, Loader, LoadState, Made, Quantiser, Step
from handlers.backends.proofs import OPENVINO, PINNING
from handlers.shared.errors import LoadError
from handlers.shared.shapes import Shape

HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
"""What is not quantised computes in it; by itself OpenVINO takes BF16 wherever the CPU has it."""
NARROW_HINT = "BF16"
"""INT8's rest computes in it where the runtime says so of the CPU: BERT's rows of 256 tokens are 5 to 7 %
faster (Zen 5), ResNet50 as fast."""
TILES = ("amx_tile",)
UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""Of INT8 with its rest in BF16, on a CPU with AMX. There the runtime's fused attention of heads of 32 is
wrong in rows of 32 tokens: a trained encoder lost 8 points, and none without it (2026.4.1; heads of 64, other
rows and AVX-512 without AMX are right). BERT is as fast without, and a tenth slower with the rest in FP32."""


def read_graph(state: LoadState) -> None:
    """Takes the place of the eager model, whose memory is free then."""
    state.facts["ir"] = _make_core().read_model(state.file)
    state.model = torch.nn.Identity()


def compile_graph(state: LoadState) -> None:
    # By now Intel's OpenMP has bound this thread to one CPU (KMP_AFFINITY). The runtime takes as many threads
    # as this one has CPUs, and they inherit them (one instead of two, seen).
    os.sched_setaffinity(0, state.cpus)
    core = _make_core()
    offered = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(torch.get_num_threads()),
        "ENABLE_CPU_PINNING": PINNING,
        **choose_precision(state.options.precision, offered, tiles=has_flags(TILES)),
    }
    compiled = core.compile_model(state.facts.pop("ir"), "CPU", options)
    state.model = Compiled(compiled).eval()
    state.graph_kind = OPENVINO


def choose_precision(precision: str, offered: Collection[str], *, tiles: bool) -> dict[str, str]:
    """The runtime's options for what is not quantised, by what it offers on this CPU."""
    if precision != "int8" or NARROW_HINT not in offered:
        return {"INFERENCE_PRECISION_HINT": HINTS[precision]}
    return {"INFERENCE_PRECISION_HINT": NARROW_HINT.lower(), **(UNFUSED if tiles else {})}


def _make_core() -> Any:
    """LoadError where OpenVINO is not there."""
    # TBB opens its binding library with RTLD_DEEPBIND, past a preloaded allocator: what jemalloc or tcmalloc
    # gave is handed to glibc's free, which aborts the process (seen). This is its switch against that.
    os.environ["TBB_ENABLE_SANITIZERS"] = "1"
    try:
        import openvino
    except ImportError as error:
        raise LoadError(
            f"openvino cannot be imported: {error}", fix="make setup BACKEND=openvino, or another BACKEND"
        ) from error
    return openvino.Core()


class Compiled(torch.nn.Module):
    """Hands tensors over without a copy, and copies what comes back: the next run reuses it."""

    def __init__(self, compiled: Any) -> None:
        super().__init__()
        self.compiled = compiled
        self.request = compiled.create_infer_request()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        arrays = [tensor.contiguous().numpy() for tensor in inputs]
        return torch.from_numpy(self.request.infer(arrays, share_inputs=True)[0])


class OpenVinoLoader(Loader):
    """FP32, BF16 and static INT8."""

    steps = (Step(name="read_graph", run=read_graph), Step(name="compile_graph", run=compile_graph))

    def context(self, precision: str) -> contextlib.AbstractContextManager[None]:
        """PyTorch computes nothing."""
        return contextlib.nullcontext()

    def prepare(self, state: LoadState, precision: str) -> Made:
        return Made(files=_save(convert(state), precision))

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        return NncfQuantiser(calibration, convolutional=convolutional)

    def evidence(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """Of the runtime's model: each kind of layer with the precision it executes in."""
        compiled: Any = state.model.compiled
        layers = Counter(_name_layer(layer) for layer in compiled.get_runtime_model().get_ops())
        names = ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "ENABLE_CPU_PINNING")
        properties = {name: str(compiled.get_property(name)) for name in names}
        return {"kind": state.graph_kind, "operators": dict(sorted(layers.items())), "properties": properties}


def _name_layer(layer: Any) -> str:
    facts = layer.get_rt_info()
    kind, precision = (facts[name].astype(str) for name in ("layerType", "runtimePrecision"))
    return f"{kind} {precision}"


def convert(state: LoadState) -> Any:
    """The eager model's IR, for any shapes of its runs."""
    silence()
    import openvino

    example = state.trace_inputs
    graph = openvino.convert_model(state.model, example_input=example)
    if state.task.convolutional:  # all but the batch is fixed
        graph.reshape([-1, *example[0].shape[1:]])
    return graph


def silence() -> None:
    """Converter and NNCF would tell their maker of each use."""
    os.environ["NNCF_CI"] = "1"
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def _save(graph: Any, precision: str) -> dict[str, bytes]:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in BACKENDS[OPENVINO].files[precision]]
        # By itself it would round FP32's weights to FP16.
        openvino.save_model(graph, files[0], compress_to_fp16=False)
        return {file.name: file.read_bytes() for file in files}


@dataclass(frozen=True, kw_only=True)
class NncfRecipe:
    """One way to quantise by NNCF."""

    name: str
    full_bias_correction: bool = False
    """Of each layer by its own activations, several times as slow to make as the estimate."""


RECIPES = (
    NncfRecipe(name="mean range"),
    NncfRecipe(name="full bias correction", full_bias_correction=True),
)
"""Symmetric weights, asymmetric activations; both cost the same to run: the order is that of making them."""

HEAD = "MatMul"
"""What stays as it is in a convolutional model: the last layer, a thousandth of its arithmetic. Features of
other images than it was calibrated by go beyond the range seen and would be cut: ResNet50 gave 2 of 15
photographs another label, with probabilities 0.07 off in the mean and 0.01 without."""


class NncfQuantiser:
    """Static INT8 of convolutions, and matrix products of others; texts' models are smoothed too, NNCF's
    default. So are its ranges: each activation's, meant over the inputs."""

    recipes: Sequence[NncfRecipe] = RECIPES

    def __init__(self, calibration: Calibration, *, convolutional: bool) -> None:
        self._calibration = calibration
        self._convolutional = convolutional

    def make(self, recipe: NncfRecipe) -> Made:
        """The quantised IR."""
        state = self._calibration.load_eager()
        graph = convert(state)
        import nncf

        inputs = [[tensor.numpy().copy() for tensor in one] for one in self._calibration.batch(state, None)]
        quantised = nncf.quantize(
            graph,
            nncf.Dataset(inputs),
            preset=nncf.QuantizationPreset.MIXED,
            model_type=None if self._convolutional else nncf.ModelType.TRANSFORMER,
            subset_size=len(inputs),
            fast_bias_correction=not recipe.full_bias_correction,
            ignored_scope=nncf.IgnoredScope(types=[HEAD], validate=False) if self._convolutional else None,
            advanced_parameters=_make_parameters(),
        )
        return Made(name=recipe.name, files=_save(quantised, "int8"))


def _make_parameters() -> Any:
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    made = AdvancedQuantizationParameters()
    if not has_wide_sums():
        made.overflow_fix = OverflowFix.ENABLE  # weights of seven bits
    return made
