"""IPEX: Intel's extension for PyTorch, whose fused kernels run in a frozen TorchScript graph.

Imported only where it can live, because on a wrong machine it ends the process without an exception: it calls
os._exit(127) on a torch of another minor version and can die of an illegal instruction without AVX2; both are
asked of the metadata and of /proc/cpuinfo before the import. Where Triton is installed, the import starts a
pool of compilers beside the process, 600 MiB and 3.5 s of CPU. It prints to standard output, and computes
wrongly when the number of OpenMP threads changes after optimising. How it quantises is in ipex_int8/.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from handlers.engines.engine import BF16_FLAGS, INT8_FLAGS, Calibration, Engine, Proof, Quantiser
from handlers.engines.torchscript import CHANNELS_LAST, FREEZE, FROZEN, TRACE, count_operators, plan_kind
from handlers.shared.errors import LoadError
from handlers.shared.step import Skip, Step

if TYPE_CHECKING:
    from handlers.shared.shapes import Shape
    from handlers.shared.state import LoadState

IPEX = "intel_extension_for_pytorch"
RECIPE_FILE = "int8.json"
PLAIN_PREPACKED = frozenset(
    {
        "ipex_prepack::convolution_run",
        "ipex_prepack::linear_run",
        "ipex_prepack::mkl_sgemm_run",
        "ipex_prepack::conv_transpose_run",
    }
)
"""Operators of IPEX with prepacked weights and nothing fused to them."""
FUSED = frozenset(
    {"ipex::mha_scores_calc", "ipex::matmul_outtrans", "ipex::LlgaFusionGroup", "ipex::split_tensor"}
)
"""Operators of IPEX that stand for several of PyTorch's, apart from the fused ipex_prepack:: ones."""


def import_ipex(cpuinfo: Path = Path("/proc/cpuinfo")) -> ModuleType:
    """The IPEX module; LoadError says what does not fit."""
    _check_versions()
    _check_cpu(cpuinfo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import intel_extension_for_pytorch as ipex
    return ipex


def _check_versions() -> None:
    torch_version = version("torch")
    try:
        ipex_version = version(IPEX)
    except PackageNotFoundError as error:
        raise LoadError(
            f"ipex_enable=true, but {IPEX} is not installed",
            cure=f"pip install {IPEX}=={_minor(torch_version)}.*, or set ipex_enable=false",
        ) from error
    if _minor(torch_version) != _minor(ipex_version):
        raise LoadError(
            f"torch and {IPEX} must share their minor version: got {torch_version} and {ipex_version}",
            cure="run `make setup`, or install matching versions",
        )


def _minor(full: str) -> str:
    return ".".join(full.split(".")[:2])


def _check_cpu(cpuinfo: Path) -> None:
    if "avx2" not in cpuinfo.read_text(encoding="utf-8").split():
        raise LoadError("IPEX needs a CPU with AVX2; this one has none", cure="set ipex_enable=false")


def optimize(state: LoadState) -> None:
    import torch

    convolutional = state.classifier.convolutional
    state.model = import_ipex().optimize(
        state.model,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[state.options.precision],
        # Lets it route Linear through oneDNN: MKL leaves AVX-512 unused on AMD.
        auto_kernel_selection=state.engine_recipe.get("auto_kernel_selection", False),
        # Without convolutions there is no batch norm to fold, and IPEX would warn that it failed.
        conv_bn_folding=convolutional,
        linear_bn_folding=convolutional,
        inplace=True,
    )


def quantize(state: LoadState) -> None:
    from dataclasses import asdict

    from handlers.engines.ipex_int8.convert import convert_with_recipe, read_recipe

    recipe = state.classifier.definition.directory / RECIPE_FILE
    state.facts["recipe"] = asdict(read_recipe(recipe))
    example = state.inputs(state.classifier.layout.trace_shape)
    state.model = convert_with_recipe(state.model, example, recipe)


def _skip_optimize(state: LoadState) -> Skip | None:
    if state.options.precision != "int8":
        return None
    return Skip(status="not applicable", reason="int8 models are converted by the quantize step")


def _skip_quantize(state: LoadState) -> Skip | None:
    if state.options.precision == "int8":
        return None
    return Skip(status="not applicable", reason=f"{state.options.precision} is not quantised")


class IpexEngine(Engine):
    """Static INT8, BF16 and FP32 by oneDNN."""

    name = "ipex"
    reason = "fused oneDNN kernels in TorchScript, INT8 by calibration; its last release is 2.8"
    distribution = IPEX
    switch = "ipex_enable"
    variables = ("IPEX_", "LRU_")
    cache_bound = "LRU_CACHE_CAPACITY"
    library = "libintel-ext-pt"
    onednn = "intel_extension_for_pytorch._C"
    flags: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("avx2",),
        "bf16": BF16_FLAGS,
        "int8": INT8_FLAGS,
    }
    channels_last = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """Weights must be channels_last before they are prepacked or quantised, modules rewritten before they
        are traced."""
        return (
            CHANNELS_LAST,
            Step(name="ipex_optimize", run=optimize, skip=_skip_optimize),
            Step(name="quantize", run=quantize, skip=_skip_quantize),
            TRACE,
            FREEZE,
        )

    def list_files(self, precision: str) -> tuple[str, ...]:
        return (RECIPE_FILE,) if precision == "int8" else ()

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        from handlers.engines.ipex_int8.quantiser import IpexQuantiser

        return IpexQuantiser(calibration, convolutional=convolutional)

    def describe_graph(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """With how many operators are prepacked or fused."""
        operators = count_operators(state.graph_kind)
        return {"kind": state.graph_kind, "operators": operators, **count_fused(operators)}

    def judge(self, graph: Mapping[str, Any], *, precision: str, threads: int, off: frozenset[str]) -> Proof:
        """A frozen graph holds prepacked and fused operators."""
        kind = plan_kind(off)
        prepacked, fused = graph.get("prepacked", 0), graph.get("fused", 0)
        # oneDNN Graph's INT8 partitions hold their packed weights inside the fused operators.
        there = fused > 0 and (prepacked > 0 or precision == "int8")
        return Proof(
            asked=f"{kind}, prepacked and fused" if kind == FROZEN else kind,
            got=f"{graph.get('kind', 'unknown')}, {prepacked} prepacked, {fused} fused",
            good=graph.get("kind") == kind and (there or kind != FROZEN),
        )


def count_fused(operators: Mapping[str, int]) -> dict[str, int]:
    """How many operators are IPEX's own with packed weights, and how many stand for several."""
    prepacked = sum(n for kind, n in operators.items() if kind.startswith("ipex_prepack::"))
    fused = sum(
        n
        for kind, n in operators.items()
        if kind in FUSED or (kind.startswith("ipex_prepack::") and kind not in PLAIN_PREPACKED)
    )
    return {"prepacked": prepacked, "fused": fused}
