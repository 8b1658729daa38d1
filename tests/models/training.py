"""Trains small real models for tests as a user would, with PyTorch alone, and says what was learnt."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.definition import ModelDefinition, read_definition
from models.request import DataRequest, WeightsRequest

SEED = 0
THREADS = 1
"""Models this small gain little from a second thread, and lose much when other work holds its core."""
SHIPPED = {"image": "resnet50", "text": "bert"}
"""Whose precisions and gate the small models take: what passes here passes with the kit as it is."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A user's model and data, as files, and what the model itself says of the held-out inputs."""

    definition: ModelDefinition
    weights: Path
    calibration: Path
    evaluation: Path
    requests: tuple[bytes, ...]
    """The held-out inputs, classes mixed, in each of the forms that clients may send them."""
    answers: tuple[str, ...]
    """The right answer to each input; a request may hold several."""
    labels: tuple[str, ...]
    """Class names in the order of the model's outputs."""
    probabilities: torch.Tensor
    """The user's own model on the held-out inputs, through the user's own preprocessing, (n, classes)."""

    @property
    def takes(self) -> str:
        """`image` or `text`."""
        return "image" if self.definition.handler == "image_classifier" else "text"

    @property
    def request(self) -> WeightsRequest:
        return WeightsRequest(source="path", path=self.weights)

    @property
    def data(self) -> DataRequest:
        return DataRequest(calibration=self.calibration, evaluation=self.evaluation)


def borrow_precisions(kind: str) -> dict:
    """The fields of a shipped definition that decide what BF16 and INT8 must reach."""
    shipped = read_definition(SHIPPED[kind])
    return {
        "precisions": {name: one.model_dump() for name, one in shipped.precisions.items()},
        "accuracy_gate": shipped.accuracy_gate.model_dump(),
    }


@contextlib.contextmanager
def fixed_conditions() -> Iterator[None]:
    """One thread and one seed, and for later tests the threads and the random numbers of before."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        torch.set_num_threads(THREADS)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


Batches = Sequence[Sequence[int]]


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    batches: Batches,
    epochs: int,
    loss: Callable[[Sequence[int]], torch.Tensor],
) -> None:
    """Visit the batches in another order each epoch, at a rate that rises and falls once."""
    rate = [group["lr"] for group in optimizer.param_groups]
    steps = epochs * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.25)
    model.train()
    for epoch in range(epochs):
        for batch in random.Random(epoch).sample(batches, len(batches)):
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def cut(indices: Sequence[int], size: int) -> Batches:
    """Batches of `size`; what is left over is not used."""
    return [indices[start : start + size] for start in range(0, len(indices) - size + 1, size)]
