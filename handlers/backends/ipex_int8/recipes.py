"""The recipes by which a model may be quantised, in the order they are tried, and the file each becomes.

Seen on a trained encoder of six layers: min-max halves the answers that change, SmoothQuant leaves a quarter
of the squared error of the logits, and operators in BF16 cost little speed on a CPU that has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.ao.quantization import (
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigMapping,
)

from handlers.backends.catalogue import BF16_FLAGS, WIDE_SUMS, has_flags, has_wide_sums
from handlers.backends.ipex_int8.convert import RECIPE_KEY, Recipe
from handlers.backends.ipex_runtime import import_ipex

SMOOTH_QUANT_ALPHA = 0.75
"""How much of the range moves from activations to weights. Of 0.3 to 0.8, seen on the encoder above, 0.7 and
0.8 were best by far; IPEX's own default, 0.5, was worse than no SmoothQuant."""
OUTSIDE = 1e-4
"""Share of a batch's values that the percentile observer cuts at each end: 99.99 % remain."""
SEVEN_BITS = {"quant_min": 0, "quant_max": 127}
"""Of the calibrated range: what lies outside still takes the eighth bit, which the gate judges."""
_ADDRESS = re.compile(r'("op_type": "<[^"]*?) at 0x[0-9a-f]+>')
Summary = dict[str, Any]
"""IPEX's qconfig summary: module → operators, with the types and scales of their inputs and weights."""
Operator = tuple[str, str]
"""(module, number of the operator within it), as in a Summary."""


class PercentileObserver(MinMaxObserver):
    """The widest range of all batches, of each without its OUTSIDE smallest and largest values."""

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        values = x_orig.detach().flatten().to(self.min_val.dtype)
        rank = max(1, round(OUTSIDE * values.numel()))
        low = torch.kthvalue(values, rank).values
        high = torch.kthvalue(values, values.numel() + 1 - rank).values
        self.min_val.copy_(torch.minimum(self.min_val, low))
        self.max_val.copy_(torch.maximum(self.max_val, high))
        return x_orig


def _observe_histogram() -> Any:
    return _map_activations(HistogramObserver)


def _observe_min_max() -> Any:
    return _map_activations(MinMaxObserver)


def _observe_percentile() -> Any:
    return _map_activations(PercentileObserver)


def _observe_smooth_quant() -> Any:
    return import_ipex().quantization.get_smooth_quant_qconfig_mapping(alpha=SMOOTH_QUANT_ALPHA)


def _map_activations(observer: Any) -> QConfigMapping:
    """IPEX's default with another observer of activations."""
    weight = PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    bits = {} if has_wide_sums() else SEVEN_BITS
    seen = observer.with_args(reduce_range=False, **bits)
    return QConfigMapping().set_global(QConfig(activation=seen, weight=weight))


OBSERVERS = {
    "histogram": _observe_histogram,
    "min-max": _observe_min_max,
    "percentile": _observe_percentile,
    "smooth quant": _observe_smooth_quant,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One recipe to try: observe anew, or leave operators of the best so far in BF16."""

    name: str
    observer: str | None = None
    left_error: float | None = None
    """Share of the squared error that is left whose operators are left out too."""
    linear_only: bool = False
    """For models of Linear layers alone: IPEX smooths no convolutions."""
    flags: tuple[str, ...] = ()
    """The CPU must have one of them; () needs none."""

    @property
    def further(self) -> bool:
        """Whether it starts from the best of those that observe."""
        return self.observer is None


# In the order of what they cost in speed: an observer changes only scales, SmoothQuant multiplies each Linear
# layer's input, operators in BF16 take longer than in INT8. The first is IPEX's default, and mostly the last.
PLANS = (
    Plan(name="histogram", observer="histogram"),
    Plan(name="min-max", observer="min-max"),
    Plan(name="percentile", observer="percentile"),
    # IPEX's takes all eight bits.
    Plan(name="smooth quant", observer="smooth quant", linear_only=True, flags=WIDE_SUMS),
    Plan(name="half of the error in bf16", left_error=0.5, flags=BF16_FLAGS),
    Plan(name="nine tenths of the rest in bf16", left_error=0.9, flags=BF16_FLAGS),
    Plan(name="nine tenths of that rest in bf16", left_error=0.9, flags=BF16_FLAGS),
)


def list_plans(*, convolutional: bool) -> list[Plan]:
    """The recipes that mean something for this model, on this CPU."""
    able = [plan for plan in PLANS if has_flags(plan.flags)]
    return [plan for plan in able if not (plan.linear_only and convolutional)]


def read_summary(text: str) -> Summary:
    """IPEX's part of a recipe file."""
    return {name: module for name, module in json.loads(text).items() if name != RECIPE_KEY}


def render_recipe(recipe: Recipe, summary: str) -> str:
    """The recipe file, from IPEX's summary."""
    # IPEX makes the observers it reads by name, though their scales are there: it must know the name.
    ours, known = (f'"{observer.__name__}"' for observer in (PercentileObserver, MinMaxObserver))
    summary = drop_addresses(summary).replace(ours, known)
    return json.dumps({RECIPE_KEY: asdict(recipe), **json.loads(summary)}, indent=1)


def drop_addresses(summary: str) -> str:
    """The summary without memory addresses, which differ in each process.

    IPEX writes a function's repr as its `op_type` (`<function softmax at 0x7f…>`), but never reads it again:
    load_qconf_summary_to_model finds operators by their number and `fqn`.
    """
    return _ADDRESS.sub(r"\1>", summary)


def list_quantised(summary: Summary) -> list[Operator]:
    """The operators that compute in INT8."""
    return [
        (module, number)
        for module, infos in summary.items()
        for number, operator in infos["q_op_infos"].items()
        if any(_is_quantised(tensor) for tensor in _list_tensors(operator))
    ]


def leave_operators(summary: Summary, left: Collection[Operator]) -> Summary:
    """The summary with these operators not quantised."""
    summary = json.loads(json.dumps(summary))
    for module, number in left:
        for tensor in _list_tensors(summary[module]["q_op_infos"][number]):
            # Another operator may share the tensor: `force_dtype` is what this one wants of it.
            tensor["inf_dtype"] = tensor["orig_dtype"]
            if "force_dtype" in tensor:
                tensor["force_dtype"] = tensor["orig_dtype"]
    return summary


def _list_tensors(operator: dict[str, Any]) -> list[dict[str, Any]]:
    return [tensor for tensor in operator["input_tensor_infos"] + operator["weight_tensor_infos"] if tensor]


def _is_quantised(tensor: dict[str, Any]) -> bool:
    return tensor.get("force_dtype", tensor["inf_dtype"]) in ("torch.quint8", "torch.qint8")


def choose_left(errors: dict[Operator, float], share: float) -> list[Operator]:
    """The fewest operators that have this share of the squared error together, one at least; worst first."""
    chosen: list[Operator] = []
    rest = share * sum(errors.values())
    for operator in sorted(errors, key=errors.__getitem__, reverse=True):
        if chosen and rest <= 0:
            break
        chosen.append(operator)
        rest -= errors[operator]
    return chosen
