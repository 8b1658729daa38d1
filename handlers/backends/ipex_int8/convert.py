"""Static INT8 quantisation with IPEX: observe at build, load the recipe and convert in the worker.

The recipe is IPEX's own qconfig summary: per operator the scales and zero points that the observers chose;
and one entry of the kit's, with what must be known before IPEX reads it.
Source: intel_extension_for_pytorch.quantization (prepare, save_qconf_summary, load_qconf_summary, convert).
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handlers.backends.ipex_runtime import import_ipex
from handlers.shared.definition import BUILD_AGAIN
from handlers.shared.errors import LoadError

RECIPE_KEY = "cpu-kit"
"""IPEX looks up its modules by name in the file, and passes over what is no module's."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model was quantised, as its recipe file says."""

    name: str
    """As the build printed it."""
    smooth_quant: bool
    """Inputs of Linear layers are scaled channel by channel: IPEX must prepare the model for it."""
    bf16_operators: int
    """So many are not quantised; where there are any, all that is not in INT8 computes in BF16."""


def read_recipe(path: Path) -> Recipe:
    """The kit's entry of a recipe file; LoadError where there is none."""
    if not path.is_file():
        raise LoadError(f"the archive holds no {path.name}", cure=BUILD_AGAIN)
    try:
        return Recipe(**json.loads(path.read_text(encoding="utf-8"))[RECIPE_KEY])
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{path.name} does not fit this handler: {error!r}", cure=BUILD_AGAIN) from error


def prepare_quantization(
    model: torch.nn.Module, example: tuple[torch.Tensor, ...], mapping: Any
) -> torch.nn.Module:
    """The eager model itself, with observers of `mapping` (a QConfigMapping)."""
    import_ipex()
    from intel_extension_for_pytorch.quantization import prepare

    with warnings.catch_warnings():
        # IPEX calls deprecated parts of torch.ao and warns of each.
        warnings.simplefilter("ignore")
        return prepare(model, mapping, example_inputs=example, inplace=True)


def choose_mapping(recipe: Recipe) -> Any:
    """The QConfigMapping that a recipe can be loaded into; its observers will see nothing."""
    ipex = import_ipex()
    if recipe.smooth_quant:
        return ipex.quantization.get_smooth_quant_qconfig_mapping()
    return ipex.quantization.default_static_qconfig_mapping


def convert_with_recipe(
    model: torch.nn.Module, example: tuple[torch.Tensor, ...], path: Path
) -> torch.nn.Module:
    """The eager model with quantise/dequantise pairs by the recipe; a frozen trace of it computes in INT8."""
    recipe = read_recipe(path)
    prepared = prepare_quantization(model, example, choose_mapping(recipe))
    from intel_extension_for_pytorch.quantization import convert

    prepared.load_qconf_summary(qconf_summary=str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # In place: a copy of BERT takes a second and 440 MB.
        converted = convert(prepared, inplace=True)
    return InBf16(converted).eval() if recipe.bf16_operators else converted


class InBf16(torch.nn.Module):
    """Autocast around a model, so that a trace of it holds the casts and needs none around itself."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        # A trace must not hold a cache of casts: freezing folds those of the weights.
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            logits: torch.Tensor = self.model(*inputs)
        return logits.float()
