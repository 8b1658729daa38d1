"""torch.compile as it comes, a baseline of inductor's: each worker compiles at its start, nothing is frozen.

Source: torch 2.8, `_dynamo/config.py`.
"""

from __future__ import annotations

import shutil

from handlers.backends.catalogue import BASELINE, COMPILER
from handlers.backends.loader import LoadState, Skip
from handlers.backends.proofs import COMPILED
from handlers.shared.errors import LoadError


def check_compiler(when: str) -> None:
    """LoadError without a C++ compiler; `when` says what needs it."""
    if shutil.which(COMPILER) is None:
        raise LoadError(
            f"inductor compiles C++ when {when}, and there is no {COMPILER}",
            fix=f"apt-get install {COMPILER} there, or another BACKEND",
        )


def compile_here(state: LoadState) -> None:
    """By torch.compile with nothing frozen: weights stay as they are, and are packed anew in each run."""
    import torch._dynamo.config  # some seconds, that only this step takes

    if state.options.precision != BASELINE:
        raise LoadError(
            f"without freeze, inductor computes {BASELINE} alone: got {state.options.precision}",
            fix="leave --off freeze out",
        )
    check_compiler("a worker starts with --off freeze")
    # Else a shape too many would be computed by eager, without a word.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    state.channels_last = state.task.convolutional
    if state.channels_last:
        state.model = state.model.to(memory_format=torch.channels_last)
    state.model = torch.no_grad()(torch.compile(state.model))
    state.graph_kind = COMPILED


def unless_compiled(state: LoadState) -> Skip | None:
    own = "freeze" in state.options.off
    return Skip(status="not applicable", reason="this worker compiles the model itself") if own else None


def unless_frozen(state: LoadState) -> Skip | None:
    own = "freeze" in state.options.off
    return None if own else Skip(status="not applicable", reason="it was compiled when it was built")
