"""IPEX: Intel's extension for PyTorch, whose fused kernels run in a frozen TorchScript graph.

The recipe as Intel published it: channels_last, `ipex.optimize`, trace, freeze. Weights must be channels_last
before they are prepacked or quantised, and modules rewritten before they are traced. IPEX computes wrongly
when the number of OpenMP threads changes after optimising.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from handlers.backends.ipex_int8 import IpexQuantiser, convert_with_recipe, read_recipe
from handlers.backends.ipex_runtime import import_ipex
from handlers.backends.loader import Calibration, Loader, LoadState, Quantiser, Skip, Step
from handlers.backends.proofs import count_fused
from handlers.backends.torchscript import CHANNELS_LAST, FREEZE, TRACE, count_operators
from handlers.shared.shapes import Shape


def optimize(state: LoadState) -> None:
    convolutional = state.task.convolutional
    state.model = import_ipex().optimize(
        state.model,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[state.options.precision],
        # Lets it route Linear through oneDNN: MKL leaves AVX-512 unused on AMD.
        auto_kernel_selection=state.backend_recipe.get("auto_kernel_selection", False),
        # Without convolutions there is no batch norm to fold, and IPEX would warn that it failed.
        conv_bn_folding=convolutional,
        linear_bn_folding=convolutional,
        inplace=True,
    )


def quantize(state: LoadState) -> None:
    state.facts["recipe"] = asdict(read_recipe(state.file))
    state.model = convert_with_recipe(state.model, state.trace_inputs, state.file)


def _skip_optimize(state: LoadState) -> Skip | None:
    if state.options.precision != "int8":
        return None
    return Skip(status="not applicable", reason="int8 models are converted by the quantize step")


def _skip_quantize(state: LoadState) -> Skip | None:
    if state.options.precision == "int8":
        return None
    return Skip(status="not applicable", reason=f"{state.options.precision} is not quantised")


class IpexLoader(Loader):
    """Static INT8, BF16 and FP32 by oneDNN."""

    steps = (
        CHANNELS_LAST,
        Step(name="ipex_optimize", run=optimize, skip=_skip_optimize),
        Step(name="quantize", run=quantize, skip=_skip_quantize),
        TRACE,
        FREEZE,
    )

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        return IpexQuantiser(calibration, convolutional=convolutional)

    def evidence(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """With how many operators are prepacked or fused."""
        operators = count_operators(state.graph_kind)
        return {"kind": state.graph_kind, "operators": operators, **count_fused(operators)}
