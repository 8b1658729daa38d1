"""Static INT8 quantisation with IPEX: observe at build, load the recipe and convert in the worker.

The recipe is IPEX's own qconfig summary: per operator the scales and zero points that the observers chose.
Source: intel_extension_for_pytorch.quantization (prepare, save_qconf_summary, load_qconf_summary, convert).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from handlers.shared.ipex import import_ipex

RECIPE_FILE = "int8.json"


def prepare_quantization(model: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """The eager model itself, with observers; run samples through it, then save its recipe."""
    ipex = import_ipex()
    from intel_extension_for_pytorch.quantization import prepare

    with warnings.catch_warnings():
        # IPEX calls deprecated parts of torch.ao and warns of each.
        warnings.simplefilter("ignore")
        mapping = ipex.quantization.default_static_qconfig_mapping
        return prepare(model, mapping, example_inputs=example, inplace=True)


def convert_with_recipe(
    model: torch.nn.Module, example: tuple[torch.Tensor, ...], recipe: Path
) -> torch.nn.Module:
    """The eager model with quantise/dequantise pairs by the recipe; a frozen trace of it computes in INT8."""
    from intel_extension_for_pytorch.quantization import convert

    prepared = prepare_quantization(model, example)
    prepared.load_qconf_summary(qconf_summary=str(recipe))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # In place: a copy of BERT takes a second and 440 MB.
        return convert(prepared, inplace=True)
