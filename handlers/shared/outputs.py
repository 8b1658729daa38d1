"""A model's raw outputs: trees of tensors for the samples of a run, and how classifiers' logits are read.

Logits are read as transformers' TextClassificationPipeline reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

SOFTMAX, SIGMOID, NONE = "softmax", "sigmoid", "none"
"""As transformers' `function_to_apply` names them: one class of several, yes or no of each output, values."""
PROBLEM_TYPES = {
    "single_label_classification": SOFTMAX,
    "multi_label_classification": SIGMOID,
    "regression": NONE,
}
"""transformers' `problem_type` → how its outputs are read."""
YES = 0.5
"""An output read by sigmoid says yes from here on: its logit is 0 or more."""


def split_outputs(outputs: Any, count: int) -> list[Any]:
    """The first `count` samples' own, along dimension 0 of tensors, also in tuples and dicts; a list's
    items."""
    if isinstance(outputs, list):
        return outputs[:count]
    return [
        tree_map_only(torch.Tensor, lambda one, place=place: one[place], outputs) for place in range(count)
    ]


def list_tensors(outputs: Any) -> list[torch.Tensor]:
    """All of a tree."""
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def to_float(outputs: Any) -> Any:
    """The same tree, of float32 where its numbers are narrower floats."""
    return tree_map_only(torch.Tensor, lambda one: one.float() if one.is_floating_point() else one, outputs)


def is_finite(outputs: Any) -> bool:
    """Whether all its numbers are numbers."""
    return all(bool(torch.isfinite(one).all()) for one in list_tensors(outputs))


def choose_activation(problem_type: str | None, outputs: int) -> str:
    """Without a problem type one output is yes or no, several are classes; KeyError for an unknown one."""
    # A softmax over one output is 1.0 for every input: transformers reads it by sigmoid, whatever is said.
    if outputs == 1 and problem_type != "regression":
        return SIGMOID
    return PROBLEM_TYPES[problem_type or "single_label_classification"]


def activate(logits: torch.Tensor, activation: str) -> torch.Tensor:
    """Scores of the same shape as the logits, (…, outputs)."""
    if activation == SOFTMAX:
        return torch.softmax(logits, dim=-1)
    return torch.sigmoid(logits) if activation == SIGMOID else logits


def relative_error(got: torch.Tensor, expected: torch.Tensor, activation: str = NONE) -> float:
    """The largest ||got − expected|| / ||expected|| over the rows of two (…, outputs) tensors; infinite where
    their shapes differ.

    Rows that a softmax reads are centred first: a constant added to all logits changes no probability, and
    would hide errors. In others it changes every score.
    """
    if got.shape != expected.shape:
        return float("inf")
    if not got.numel():
        return 0.0
    got, expected = got.double(), expected.double()
    if activation == SOFTMAX:
        got, expected = got - got.mean(dim=-1, keepdim=True), expected - expected.mean(dim=-1, keepdim=True)
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-12)).max())


def find_worst(errors: Sequence[float]) -> float:
    """The largest; NaN where one is, which Python's max would pass over."""
    return float(torch.tensor([*errors], dtype=torch.float64).max())
