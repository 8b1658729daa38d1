"""Quantises for Inductor: PyTorch's own static INT8 by post-training quantisation of an export (PT2E).

Activations are uint8 for each tensor, of seven bits where sums would saturate, and weights int8 for each
channel. Whether a graph was quantised, and whether its code multiplies so, is counted: where a pattern is not
met PyTorch does neither without a word.
Source: torch 2.8, `ao/quantization/quantizer/x86_inductor_quantizer.py`,
`_inductor/fx_passes/quantization.py`; torchao 0.18, `quantization/pt2e/`, which has both.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from handlers.backends.catalogue import INT8, has_wide_sums
from handlers.backends.inductor_compile import compile_library
from handlers.backends.inductor_library import count_executed, load_file, read_files
from handlers.backends.inductor_packing import load_quantiser
from handlers.backends.loader import Calibration, Made
from handlers.backends.proofs import count_products
from handlers.shared.errors import LoadError

pt2e, observers, x86 = load_quantiser()

PRODUCTS = (torch.ops.aten.conv2d.default, torch.ops.aten.linear.default)
QUANTISED_WEIGHT = torch.ops.quantized_decomposed.dequantize_per_channel.default
LEAST_SCALE = 2**-12
"""As in PyTorch's configuration for x86."""
FIX = "use PRECISION=bf16, or another BACKEND"


@dataclass(frozen=True, kw_only=True)
class AotRecipe:
    """How the range of activations is seen."""

    name: str
    observer: Any


RECIPES = (
    AotRecipe(name="histogram", observer=observers.HistogramObserver),
    AotRecipe(name="min-max", observer=observers.MinMaxObserver),
)
"""PyTorch's default first; both cost the same to run."""


class AotQuantiser:
    """All convolutions and linear layers of one model."""

    recipes: Sequence[AotRecipe] = RECIPES

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration

    def make(self, recipe: AotRecipe) -> Made:
        """The library; LoadError where it is not quantised through and through."""
        state = self._calibration.load_eager()
        batches = self._calibration.batch(state, None)
        quantise = functools.partial(quantise_export, recipe=recipe, batches=batches)
        with compile_library(state, INT8, quantise) as library:
            example = state.trace_inputs
            compiled = load_file(library)
            check_compiled(count_executed(lambda: compiled(*example)))
            return Made(name=recipe.name, files=read_files(library, INT8))


def quantise_export(
    graph: torch.fx.GraphModule, *, recipe: AotRecipe, batches: Iterable[tuple[torch.Tensor, ...]]
) -> torch.nn.Module:
    """A strictly exported graph with quantised inputs and weights of each product."""
    graph.graph.eliminate_dead_code()  # the quantizer takes for granted that all it finds has a user
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = pt2e.prepare_pt2e(graph, make_quantizer(recipe))
        for inputs in batches:
            prepared(*inputs)
        quantised: torch.fx.GraphModule = pt2e.convert_pt2e(prepared)
    check_quantised(quantised)
    return quantised


def make_quantizer(recipe: AotRecipe) -> Any:
    """PyTorch's for x86, with another observer of activations."""
    config = x86.get_default_x86_inductor_quantization_config(reduce_range=not has_wide_sums())
    observer = recipe.observer.with_args(eps=LEAST_SCALE)
    seen = replace(config.input_activation, observer_or_fake_quant_ctr=observer)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(replace(config, input_activation=seen, output_activation=seen))
    # PyTorch's kernel for it in uint8 is none that a library can call alone.
    quantizer.set_function_type_qconfig(torch.nn.functional.max_pool2d, None)
    return quantizer


def check_quantised(graph: torch.fx.GraphModule) -> None:
    """LoadError for a graph that is not what was asked for."""
    targets = [node.target for node in graph.graph.nodes]
    products = sum(targets.count(one) for one in PRODUCTS)
    weights = targets.count(QUANTISED_WEIGHT)
    if not 0 < products <= weights:
        raise LoadError(f"PyTorch quantised {weights} of {products} products by weights", fix=FIX)


def check_compiled(operators: dict[str, int]) -> None:
    """LoadError for a library that converts INT8 back to multiply."""
    fused, others = count_products(operators, INT8)
    if others or not fused:
        raise LoadError(
            f"Inductor compiled {fused} of {fused + others} products by weights to INT8 ones", fix=FIX
        )
