"""What backends on TorchScript share: the steps to a frozen graph, and a look at what it executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from handlers.backends.loader import LoadState, Skip, Step, unless_off
from handlers.backends.proofs import EAGER, FROZEN, TRACED
from handlers.shared.evidence import count_channels_last


def channels_last(state: LoadState) -> None:
    state.model = state.model.to(memory_format=torch.channels_last)
    state.channels_last = True
    # Counted here: later steps replace the weights by constants and blocked copies without a memory format.
    state.facts["channels_last_weights"] = count_channels_last(state.model)


def trace(state: LoadState) -> None:
    with state.loader.context(state.options.precision):
        # check_trace would run the model again to compare it with itself; self_check compares with eager.
        state.model = torch.jit.trace(state.model, state.trace_inputs, check_trace=False, strict=False)
    state.graph_kind = TRACED


def freeze(state: LoadState) -> None:
    state.model = torch.jit.freeze(state.model)
    state.graph_kind = FROZEN


def _skip_channels_last(state: LoadState) -> Skip | None:
    if not state.task.convolutional:
        return Skip(status="not applicable", reason="the model has no convolutions")
    return unless_off("channels_last")(state)


def _skip_trace(state: LoadState) -> Skip | None:
    if not state.task.freeze:
        return Skip(status="off", reason="the handler sets freeze = False")
    return unless_off("trace")(state)


def _skip_freeze(state: LoadState) -> Skip | None:
    if not state.task.freeze:
        return _skip_trace(state)
    if "trace" in state.options.off:
        return Skip(status="off", reason="only a traced model can be frozen, and tracing is switched off")
    return unless_off("freeze")(state)


CHANNELS_LAST = Step(name="channels_last", run=channels_last, skip=_skip_channels_last)
TRACE = Step(name="trace", run=trace, skip=_skip_trace)
FREEZE = Step(name="freeze", run=freeze, skip=_skip_freeze)


def count_operators(graph_kind: str) -> dict[str, int]:
    """How often each operator stands in the graph that this thread ran last; empty for eager models."""
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
