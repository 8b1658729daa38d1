"""PyTorch alone: its own kernels, in a frozen TorchScript graph unless that is switched off.

The baseline, and what an archive is served by where nothing else is asked for.
"""

from __future__ import annotations

from typing import Any

from handlers.backends.loader import Loader, LoadState
from handlers.backends.torchscript import CHANNELS_LAST, FREEZE, TRACE, count_operators
from handlers.shared.shapes import Shape


class EagerLoader(Loader):
    """Weights are laid out before they become constants; only a trace can be frozen."""

    steps = (CHANNELS_LAST, TRACE, FREEZE)

    def evidence(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        return {"kind": state.graph_kind, "operators": count_operators(state.graph_kind)}
