"""How a model's raw outputs are read, as transformers' TextClassificationPipeline reads them."""

from __future__ import annotations

import torch

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


def choose_activation(problem_type: str | None, outputs: int) -> str:
    """Without a problem type one output is yes or no, several are classes; KeyError for an unknown one."""
    # A softmax over one output is 1.0 for every input: transformers reads it by sigmoid, whatever is said.
    if outputs == 1 and problem_type != "regression":
        return SIGMOID
    return PROBLEM_TYPES[problem_type or "single_label_classification"]


def activate(logits: torch.Tensor, activation: str) -> torch.Tensor:
    """Scores of the same shape as the logits, (N, outputs)."""
    if activation == SOFTMAX:
        return torch.softmax(logits, dim=1)
    return torch.sigmoid(logits) if activation == SIGMOID else logits


def relative_error(got: torch.Tensor, expected: torch.Tensor, activation: str) -> float:
    """The largest ||got − expected|| / ||expected|| over the rows of two (N, outputs) tensors.

    Rows that a softmax reads are centred first: a constant added to all logits changes no probability, and
    would hide errors. In others it changes every score.
    """
    if activation == SOFTMAX:
        got, expected = got - got.mean(dim=1, keepdim=True), expected - expected.mean(dim=1, keepdim=True)
    return float(((got - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-12)).max())
