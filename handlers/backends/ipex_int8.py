"""Static INT8 with IPEX: activations are observed at build, and the worker converts by the recipe file.

The file is IPEX's own qconfig summary: per operator the scales and zero points that the observers chose; and
one entry of the kit's, with what must be known before IPEX reads it.
Source: intel_extension_for_pytorch.quantization (prepare, save_qconf_summary, load_qconf_summary, convert).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.ao.quantization import (
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigMapping,
)

from handlers.backends.catalogue import BACKENDS, WIDE_SUMS, has_flags, has_wide_sums
from handlers.backends.ipex_runtime import import_ipex
from handlers.backends.loader import Calibration, Inputs, Made
from handlers.definition import BUILD_AGAIN
from handlers.shared.errors import LoadError

(RECIPE_FILE,) = BACKENDS["ipex"].files["int8"]
RECIPE_KEY = "cpu-kit"
"""IPEX looks up its modules by name in the file, and passes over what is no module's."""
SMOOTH_QUANT_ALPHA = 0.75
"""How much of the range moves from activations to weights. Of 0.3 to 0.8, seen on a trained encoder of six
layers, 0.7 and 0.8 were best by far; IPEX's own default, 0.5, was worse than no SmoothQuant."""
SEVEN_BITS = {"quant_min": 0, "quant_max": 127}
"""Of the calibrated range, where sums would saturate: what lies outside still takes the eighth bit, which the
gate judges."""
_ADDRESS = re.compile(r'("op_type": "<[^"]*?) at 0x[0-9a-f]+>')


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is quantised, as its recipe file says."""

    name: str
    smooth_quant: bool = False
    """Inputs of Linear layers are scaled channel by channel: IPEX must prepare the model for it."""


HISTOGRAM = Recipe(name="histogram")
"""IPEX's default; of the two always the first, as it has the least to run."""
MIN_MAX = Recipe(name="min-max")
"""The whole range of each activation: it halves the answers that change (the encoder above)."""
SMOOTH = Recipe(name="smooth quant", smooth_quant=True)
"""It leaves a quarter of the squared error of the logits (the encoder above). IPEX smooths no convolutions,
and its own takes all eight bits."""


def list_recipes(*, convolutional: bool) -> tuple[Recipe, Recipe]:
    """The two that are tried for a model on this CPU, in this order."""
    return HISTOGRAM, SMOOTH if not convolutional and has_flags(WIDE_SUMS) else MIN_MAX


def make_mapping(recipe: Recipe) -> Any:
    """IPEX's QConfigMapping that observes for a recipe."""
    if recipe.smooth_quant:
        return import_ipex().quantization.get_smooth_quant_qconfig_mapping(alpha=SMOOTH_QUANT_ALPHA)
    weight = PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    bits = {} if has_wide_sums() else SEVEN_BITS
    observer = HistogramObserver if recipe == HISTOGRAM else MinMaxObserver
    activation = observer.with_args(reduce_range=False, **bits)
    return QConfigMapping().set_global(QConfig(activation=activation, weight=weight))


class IpexQuantiser:
    """The recipes of one model."""

    def __init__(self, calibration: Calibration, *, convolutional: bool) -> None:
        self.recipes: Sequence[Recipe] = list_recipes(convolutional=convolutional)
        self._calibration = calibration

    def make(self, recipe: Recipe) -> Made:
        """A recipe file, by what the eager model's activations are on the calibration inputs."""
        state, file = self._calibration.load_eager(), self._calibration.directory / RECIPE_FILE
        prepared = prepare_quantization(state.model, state.trace_inputs, make_mapping(recipe))
        with torch.no_grad():
            for inputs in self._calibration.batch(state, None):
                prepared(*inputs)
        prepared.save_qconf_summary(qconf_summary=str(file))
        text = render_recipe(recipe, file.read_text(encoding="utf-8"))
        return Made(name=recipe.name, files={RECIPE_FILE: text.encode()})


def prepare_quantization(model: torch.nn.Module, example: Inputs, mapping: Any) -> torch.nn.Module:
    """The eager model itself, with observers of `mapping` (a QConfigMapping)."""
    import_ipex()
    from intel_extension_for_pytorch.quantization import prepare

    with warnings.catch_warnings():
        # IPEX calls deprecated parts of torch.ao and warns of each.
        warnings.simplefilter("ignore")
        return prepare(model, mapping, example_inputs=example, inplace=True)


def render_recipe(recipe: Recipe, summary: str) -> str:
    """The recipe file, from IPEX's summary without memory addresses, which differ in each process.

    IPEX writes a function's repr as its `op_type` (`<function softmax at 0x7f…>`), but never reads it again:
    load_qconf_summary_to_model finds operators by their number and `fqn`.
    """
    return json.dumps({RECIPE_KEY: asdict(recipe), **json.loads(_ADDRESS.sub(r"\1>", summary))}, indent=1)


def read_recipe(path: Path) -> Recipe:
    """The kit's entry of a recipe file; LoadError where there is none."""
    if not path.is_file():
        raise LoadError(f"the archive holds no {path.name}", fix=BUILD_AGAIN)
    try:
        return Recipe(**json.loads(path.read_text(encoding="utf-8"))[RECIPE_KEY])
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{path.name} does not fit this handler: {error!r}", fix=BUILD_AGAIN) from error


def convert_with_recipe(model: torch.nn.Module, example: Inputs, path: Path) -> torch.nn.Module:
    """The eager model with quantise/dequantise pairs by the recipe; a frozen trace of it computes in INT8."""
    quantization = import_ipex().quantization
    smooth = read_recipe(path).smooth_quant
    # Its observers will see nothing: it says how modules are prepared.
    mapping = (
        quantization.get_smooth_quant_qconfig_mapping()
        if smooth
        else quantization.default_static_qconfig_mapping
    )
    prepared: Any = prepare_quantization(model, example, mapping)
    prepared.load_qconf_summary(qconf_summary=str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # In place: a copy of BERT takes a second and 440 MB.
        converted: torch.nn.Module = quantization.convert(prepared, inplace=True)
    return converted
