"""The numeric precisions a model can be served in, and what each means to PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

INT8 = "int8"


@contextlib.contextmanager
def precision_context(precision: str) -> Iterator[None]:
    """No autograd, and autocast where PyTorch chooses the narrower type operator by operator."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        yield
