"""What engines on TorchScript share: the steps to a frozen graph, and a look at what it executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from handlers.shared.step import Skip, Step, unless_off

if TYPE_CHECKING:
    from handlers.shared.state import LoadState

EAGER, TRACED, FROZEN = "eager", "torchscript", "frozen torchscript"


def channels_last(state: LoadState) -> None:
    import torch

    from handlers.shared.evidence import count_channels_last

    state.model = state.model.to(memory_format=torch.channels_last)
    state.channels_last = True
    # Counted here: later steps replace the weights by constants and blocked copies without a memory format.
    state.facts["channels_last_weights"] = count_channels_last(state.model)


def trace(state: LoadState) -> None:
    import torch

    example = state.inputs(state.classifier.layout.trace_shape)
    with state.engine.context(state.options.precision):
        # check_trace would run the model again to compare it with itself; self_check compares with eager.
        state.model = torch.jit.trace(state.model, example, check_trace=False, strict=False)
    state.graph_kind = TRACED


def freeze(state: LoadState) -> None:
    import torch

    state.model = torch.jit.freeze(state.model)
    state.graph_kind = FROZEN


def _skip_channels_last(state: LoadState) -> Skip | None:
    if not state.classifier.convolutional:
        return Skip(status="not applicable", reason="the model has no convolutions")
    return unless_off("channels_last")(state)


def _skip_freeze(state: LoadState) -> Skip | None:
    if "trace" in state.options.off:
        return Skip(status="off", reason="only a traced model can be frozen, and tracing is switched off")
    return unless_off("freeze")(state)


CHANNELS_LAST = Step(name="channels_last", run=channels_last, skip=_skip_channels_last)
TRACE = Step(name="trace", run=trace, skip=unless_off("trace"))
FREEZE = Step(name="freeze", run=freeze, skip=_skip_freeze)


def plan_kind(off: frozenset[str]) -> str:
    """What the graph is to be where these steps are switched off."""
    return EAGER if "trace" in off else TRACED if "freeze" in off else FROZEN


def count_operators(graph_kind: str) -> dict[str, int]:
    """How often each operator stands in the graph that this thread ran last; empty for eager models."""
    import torch

    if graph_kind == EAGER:
        return {}
    graph = torch.jit.last_executed_optimized_graph()
    kinds = Counter(kind for kind in _walk_kinds(graph) if not kind.startswith("prim::"))
    return dict(sorted(kinds.items()))


def _walk_kinds(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _walk_kinds(inner)
