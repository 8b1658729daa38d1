"""Inductor: PyTorch's own compiler; a worker loads what was compiled when the model was built.

The library (`inductor-<precision>.so`, by AOTInductor) holds code and packed weights for all served shapes:
a worker needs no compiler and compiles nothing. With `freeze` switched off it compiles the model itself
(torch_compile.py).
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import torch

from handlers.backends.inductor_library import (
    count_compiled,
    count_executed,
    count_weights,
    describe_library,
    load_file,
    read_files,
)
from handlers.backends.loader import Calibration, Loader, LoadState, Made, Quantiser, Step, unless_off
from handlers.backends.proofs import LIBRARY
from handlers.backends.torch_compile import compile_here, unless_compiled, unless_frozen
from handlers.definition import BUILD_AGAIN
from handlers.shared.errors import LoadError
from handlers.shared.shapes import Shape


def check_library(state: LoadState) -> None:
    """Refuse what was compiled for another CPU, which would end the process, or for another PyTorch."""
    library = state.file
    built = json.loads(library.with_suffix(".json").read_text(encoding="utf-8"))
    here = describe_library(library)
    lacking = sorted(set(built["cpu_flags"]) - set(here["cpu_flags"]))
    if lacking or built["torch"] != here["torch"]:
        wanted = f"a CPU with {', '.join(lacking)}" if lacking else f"torch {built['torch']}"
        got = "which this one lacks" if lacking else f"and this is {here['torch']}"
        name, precision = state.task.definition.name, state.options.precision
        raise LoadError(
            f"{library.name} was compiled for {wanted}, {got}",
            fix="delete the archive, and build it on this machine: "
            f"make models MODELS={name} BACKEND=inductor PRECISION={precision}",
        )
    if built["sha256"] != here["sha256"]:
        raise LoadError(f"{library.name} is not what was compiled", fix=BUILD_AGAIN)
    state.facts["library"] = {"sha256": here["sha256"], "built": built["sha256"], "cpu_lacks": lacking}


def load_library(state: LoadState) -> None:
    """Takes the place of the eager model, whose memory is free for its weights."""
    state.model = torch.nn.Identity()
    state.model = load_file(state.file)
    # Its code reads what it was compiled with, whatever strides a tensor has.
    state.channels_last = state.task.convolutional
    state.graph_kind = LIBRARY


class InductorLoader(Loader):
    """FP32, BF16 and static INT8; code for another CPU must not run before it is rejected."""

    steps = (
        Step(name="check_library", run=check_library, skip=unless_compiled),
        Step(name="freeze", run=load_library, skip=unless_off("freeze")),
        Step(name="compile", run=compile_here, skip=unless_frozen),
    )

    def context(self, precision: str) -> contextlib.AbstractContextManager[None]:
        """Types are in the compiled code, and it records nothing for a gradient."""
        return contextlib.nullcontext()

    # The compiler is imported where models are built alone: it takes a worker's seconds and memory.

    def prepare(self, state: LoadState, precision: str) -> Made:
        from handlers.backends.inductor_compile import compile_library

        with compile_library(state, precision) as library:
            return Made(files=read_files(library, precision))

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        from handlers.backends.inductor_int8 import AotQuantiser

        return AotQuantiser(calibration)

    def evidence(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """What a profiler saw of a run, and the types of the library's constants."""
        inputs = state.inputs(ran)
        return {
            "kind": state.graph_kind,
            "operators": count_executed(lambda: state.run(inputs)),
            "weights": count_weights(state.model),
            "library": state.facts.get("library", {}),
            "threads": torch.get_num_threads(),
            "compiled_here": count_compiled(),
        }
