"""A backend that doubles nothing, and says so: an entry of the catalogue, and this file."""

from __future__ import annotations

from typing import Any

import torch

from handlers.backends.catalogue import Backend
from handlers.backends.loader import Loader, LoadState, Step
from handlers.backends.proofs import Graph, Proof
from handlers.shared.shapes import Shape


def judge_toy(graph: Graph, *, precision: str, threads: int, off: frozenset[str]) -> Proof:
    return Proof(expected="toy", actual=str(graph["kind"]), good=graph["kind"] == "toy")


ENTRY = Backend(
    name="toy", reason="a test", loader=f"{__name__}:ToyLoader", flags={"fp32": ()}, judge=judge_toy
)


def take(state: LoadState) -> None:
    state.model, state.graph_kind = torch.nn.Sequential(state.model), "toy"


class ToyLoader(Loader):
    steps = (Step(name="toy", run=take),)

    def evidence(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        return {"kind": state.graph_kind, "operators": {"toy": 1}}
