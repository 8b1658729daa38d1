"""The numeric precisions a model can be served in, and what each means to PyTorch.

INT8 will be one more entry here with its own prepare/convert step in `steps.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@contextlib.contextmanager
def precision_context(precision: str) -> Iterator[None]:
    """No autograd, and autocast where the precision is narrower than FP32."""
    dtype = DTYPES[precision]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        yield
