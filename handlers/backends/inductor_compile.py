"""Compiles an eager model to one library for all shapes that are served: Inductor, ahead of time.

Only dimensions that differ between served shapes are symbolic: a library for each shape would hold the
weights as often, and take as long to compile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._inductor
from torch._inductor.utils import fresh_cache

from handlers.backends.catalogue import COMPILER
from handlers.backends.inductor_packing import register_packing
from handlers.backends.loader import LoadState
from handlers.backends.torch_compile import check_compiler
from handlers.shared.errors import LoadError
from handlers.shared.shapes import Shape

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "max-autotune": {"max_autotune": True},
}
"""torch.compile's modes that mean something here: `reduce-overhead` is CUDA graphs."""
OPTIONS: Mapping[str, Any] = {
    "freezing": True,
    "cpp.cxx": (None, COMPILER),
    # Else the number of threads of the build would be compiled in, and a worker's is another.
    "cpp.dynamic_threads": True,
    # Each kernel says its name to a profiler, if there is one: what a worker proves itself by.
    "cpp.enable_kernel_profile": True,
    # Worth it for the second compilation, and there is none.
    "aot_inductor.precompile_headers": False,
}
"""Of torch._inductor.config."""


@contextmanager
def compile_library(
    state: LoadState,
    precision: str,
    quantise: Callable[[torch.fx.GraphModule], torch.nn.Module] | None = None,
) -> Iterator[Path]:
    """The library, which is gone afterwards; LoadError without a C++ compiler, or for a mode that is none."""
    check_compiler("a model is built")
    recipe = state.task.definition.precisions[precision].backends.get("inductor", {})
    options = {**OPTIONS, **_read_mode(recipe.get("mode", "default"))}
    state.channels_last = state.task.convolutional
    if state.channels_last:
        state.model = state.model.to(memory_format=torch.channels_last)
    inputs = state.inputs(_choose_example(state))
    register_packing()
    model, symbolic = state.model, _find_symbolic(state)
    if precision == "bf16":
        model, symbolic = _Autocast(model), (symbolic,)
    with torch.no_grad():
        # Strictly to be quantised: only Dynamo notes the source of each operator, which PT2E looks for.
        exported = torch.export.export(model, inputs, dynamic_shapes=symbolic, strict=quantise is not None)
        if quantise is not None:
            exported = torch.export.export(quantise(exported.module()), inputs, dynamic_shapes=symbolic)
    # Its caches are of no use to the next build, whose code or weights differ.
    with tempfile.TemporaryDirectory(prefix="inductor-") as folder, fresh_cache(dir=folder), torch.no_grad():
        file = Path(folder) / "model.so"
        options["aot_inductor.output_path"] = str(file)
        torch._inductor.aot_compile(exported.module(), inputs, options=options)
        yield file


class _Autocast(torch.nn.Module):
    """An export sees what a model switches on itself, and nothing that is switched on around it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits: torch.Tensor = self.model(*inputs)
        return logits


def _read_mode(mode: str) -> Mapping[str, Any]:
    if mode not in MODES:
        raise LoadError(
            f"mode must be one of {', '.join(MODES)}: got {mode}",
            fix="change precisions.*.backends.inductor.mode in model.yaml",
        )
    return MODES[mode]


def _choose_example(state: LoadState) -> Shape:
    """The most rows, since one would be taken for a constant, and the widest of them."""
    return max(state.task.layout.list_shapes(), key=lambda shape: (shape.batch_size, shape.length))


def _find_symbolic(state: LoadState) -> tuple[Any, ...]:
    """For each input, the dimensions that differ between served shapes."""
    served = [state.inputs(shape) for shape in state.task.layout.list_shapes()]
    return tuple(
        {
            dimension: torch.export.Dim.DYNAMIC
            for dimension in range(each[0].dim())
            if len({tensor.shape[dimension] for tensor in each}) > 1
        }
        for each in zip(*served, strict=True)
    )
