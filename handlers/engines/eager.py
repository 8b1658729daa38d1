"""PyTorch alone: its own kernels, in a frozen TorchScript graph unless that is switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from handlers.engines.engine import BF16_FLAGS, Engine, Proof
from handlers.engines.torchscript import CHANNELS_LAST, FREEZE, TRACE, count_operators, plan_kind

if TYPE_CHECKING:
    from handlers.shared.shapes import Shape
    from handlers.shared.state import LoadState
    from handlers.shared.step import Step

OWN = ("aten::", "mkldnn::", "mkldnn_prepacked::", "prepacked::")
"""Namespaces of PyTorch's own operators, seen in frozen graphs."""


class EagerEngine(Engine):
    """The baseline, and what an archive is served by where nothing else is asked for."""

    name = "eager"
    reason = "PyTorch alone, a baseline: nothing else has to be installed"
    flags: ClassVar[Mapping[str, tuple[str, ...]]] = {"fp32": (), "bf16": BF16_FLAGS}
    channels_last = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """Weights are laid out before they become constants; only a trace can be frozen."""
        return (CHANNELS_LAST, TRACE, FREEZE)

    def describe_graph(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        return {"kind": state.graph_kind, "operators": count_operators(state.graph_kind)}

    def judge(self, graph: Mapping[str, Any], *, precision: str, threads: int, off: frozenset[str]) -> Proof:
        """Nobody else's operators."""
        foreign = sorted(kind for kind in graph.get("operators") or () if not kind.startswith(OWN))
        kind = str(graph.get("kind", "unknown"))
        got = f"{kind}, with {', '.join(foreign)}" if foreign else kind
        return Proof(asked=plan_kind(off), got=got, good=got == plan_kind(off))
