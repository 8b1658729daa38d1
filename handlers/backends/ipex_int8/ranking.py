"""Which of a quantised model's operators are to blame: each alone in INT8, all others in FP32.

It switches operators in a model that IPEX has converted but nobody has traced, through what IPEX 2.8 keeps of
each (`_fqn_to_auto_quant_state_map`). To convert BERT anew for each of its operators would take minutes.
Whether what is left out by this ranking helps, the gate judges on a recipe that IPEX has read from its file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from handlers.backends.ipex_int8.recipes import Operator
from handlers.backends.loader import OutOfTimeError

Inputs = tuple[torch.Tensor, ...]


class Switch:
    """One operator of a converted model, to be switched between INT8 and FP32."""

    def __init__(self, model: Any, operator: Operator) -> None:
        module, number = operator
        self._state = model._fqn_to_auto_quant_state_map[module]
        self._number = int(number)
        self._seen = self._state.idx_to_seen_q_op_infos[self._number]
        self._inputs = self._state.idx_to_op_convert_info[self._number]
        self._weights = self._state.idx_to_op_weight_convert_info[self._number]
        self._outputs = self._seen.insert_fake_quant_after_outputs

    def turn(self, *, on: bool) -> None:
        """INT8 when on."""
        state, number = self._state, self._number
        state.idx_to_op_convert_info[number] = self._inputs if on else _without(self._inputs)
        state.idx_to_op_weight_convert_info[number] = self._weights if on else _without(self._weights)
        self._seen.insert_fake_quant_after_outputs = self._outputs if on else [False] * len(self._outputs)


def _without(info: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    scales, needed = info
    return scales, [None if one is None else False for one in needed]


def rank_operators(
    model: Any,
    operators: Sequence[Operator],
    batches: Sequence[Inputs],
    *,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[Operator, float]:
    """Squared error of the logits that each operator alone makes; OutOfTimeError once it is foreseen."""
    switches = {operator: Switch(model, operator) for operator in operators}
    for switch in switches.values():
        switch.turn(on=False)
    began = clock()
    exact = _run(model, batches)
    if clock() + len(switches) * (clock() - began) > deadline:
        raise OutOfTimeError
    errors = {}
    for operator, switch in switches.items():
        switch.turn(on=True)
        errors[operator] = float((_run(model, batches) - exact).square().sum())
        switch.turn(on=False)
    return errors


def _run(model: Any, batches: Sequence[Inputs]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(*inputs).float() for inputs in batches])
