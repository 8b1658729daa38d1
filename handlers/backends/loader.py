"""How a backend turns an eager model into the one that serves: its steps, and what they hand on."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map_only

from handlers.backends.catalogue import BACKENDS, Backend, name_variant
from handlers.definition import Precision
from handlers.shared.errors import LoadError
from handlers.shared.options import LoadOptions
from handlers.shared.outputs import find_worst, to_float
from handlers.shared.shapes import Run, Shape
from handlers.shared.work import Work
from handlers.task import Inputs, Task

EXAMPLES = 4
"""Different samples used for tracing, warm-up and the self-check; at least 2."""


@dataclass(kw_only=True)
class LoadedModel:
    """The model, and what answering needs and describe says of it."""

    task: Task
    options: LoadOptions
    loader: Loader
    model: torch.nn.Module = field(default_factory=torch.nn.Identity)
    graph_kind: str = "eager"
    channels_last: bool = False
    work: Work = field(default_factory=Work)
    """What answering costs; without bounds until it is timed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What describe answers beyond the step records."""

    @property
    def backend(self) -> Backend:
        """What computes it."""
        return BACKENDS[self.options.backend]

    @property
    def accuracy(self) -> dict[str, Any] | None:
        """What the gate saw of it; None for what it does not judge."""
        variant = name_variant(self.options.backend, self.options.precision)
        return self.task.definition.find_accuracy(variant)

    def run(self, inputs: Inputs) -> Any:
        """Outputs in float32, through whatever the model has become."""
        with self.loader.context(self.options.precision):
            return to_float(self.model(*inputs))

    def to_inputs(self, run: Run, samples: Sequence[Any]) -> Inputs:
        """The model's inputs for one run; valid until the next call."""
        rows = [[samples[position] for position in row] for row in run.rows]
        return self.task.to_inputs(rows, length=run.length, channels_last=self.channels_last)


@dataclass(kw_only=True)
class LoadState(LoadedModel):
    """A model on its way, with its examples and what it must answer to them."""

    cpus: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    """This process's; Intel's OpenMP will bind the thread that starts its first team to one of them."""
    examples: list[Any] = field(default_factory=list)
    """EXAMPLES samples of all lengths."""
    reference: list[Any] = field(default_factory=list)
    """The eager FP32 model's output for each example, alone."""
    warmed: dict[Shape, Any] = field(default_factory=dict)
    """What the finished model answered for the examples in each shape."""

    @property
    def recipe(self) -> Precision:
        return self.task.definition.precisions[self.options.precision]

    @property
    def backend_recipe(self) -> Mapping[str, Any]:
        """What the model's definition says to this backend alone."""
        return self.recipe.backends.get(self.options.backend, {})

    @property
    def directory(self) -> Path:
        """The archive, unpacked."""
        return self.task.model_dir

    @property
    def file(self) -> Path:
        """The first of the files that the backend reads in this precision."""
        return self.directory / self.backend.files[self.options.precision][0]

    def arrange(self, shape: Shape) -> Run:
        """Which examples stand where in a run of one shape."""
        needed = [self.task.measure(sample) for sample in self.examples]
        return self.task.layout.arrange(shape, needed)

    def inputs(self, shape: Shape) -> Inputs:
        """Example inputs of one shape, the caller's to keep."""
        inputs = self.to_inputs(self.arrange(shape), self.examples)
        kept: Inputs = tree_map_only(torch.Tensor, torch.clone, inputs)
        return kept

    @property
    def trace_inputs(self) -> Inputs:
        """Example inputs to trace or convert by."""
        return self.inputs(self.task.layout.trace_shape)

    def compare(self, shape: Shape, outputs: Any) -> float:
        """The largest error (Task.compare) of a run of one shape's examples against FP32 eager's."""
        numbers = self.arrange(shape).samples
        split = self.task.split(outputs, [self.examples[number] for number in numbers])
        pairs = zip(split, (self.reference[number] for number in numbers), strict=True)
        return find_worst([self.task.compare(got, expected) for got, expected in pairs])

    def finish(self) -> LoadedModel:
        """Without what only the load needed."""
        return LoadedModel(**{one.name: getattr(self, one.name) for one in fields(LoadedModel)})


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why a step is not run."""

    status: str
    """`off`: switched off, or `not applicable`: it means nothing for this model."""
    reason: str


def always(_state: LoadState) -> Skip | None:
    """Never passed over."""
    return None


def unless_off(name: str) -> Callable[[LoadState], Skip | None]:
    """Passed over where the plan switches `name` off."""

    def skip(state: LoadState) -> Skip | None:
        if name in state.options.off:
            return Skip(status="off", reason="switched off by the plan")
        return None

    return skip


@dataclass(frozen=True, kw_only=True)
class Step:
    """One entry of a list of steps."""

    name: str
    run: Callable[[LoadState], None]
    skip: Callable[[LoadState], Skip | None] = always


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a backend prepared at build."""

    name: str = ""
    """Of the INT8 recipe, as the build prints it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What a load reads beside the weights, by name in the archive."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a backend may look at when it quantises."""

    directory: Path
    """The archive as it will be unpacked."""
    load_eager: Callable[[], LoadState]
    batch: Callable[[LoadState, int | None], Iterator[Inputs]]
    """Inputs of runs of the calibration data, or of its first so many samples; each set valid until the next
    is asked for."""


class Recipe(Protocol):
    """One way to quantise, to be tried."""

    @property
    def name(self) -> str: ...


class Quantiser(Protocol):
    """Quantises one model by one recipe after the other."""

    @property
    def recipes(self) -> Sequence[Any]:
        """In the order they are tried, two at most: the cheaper to run first."""

    def make(self, recipe: Any) -> Made:
        """By one of `recipes`; LoadError where it cannot be made."""


@contextlib.contextmanager
def autocast(precision: str) -> Iterator[None]:
    """No autograd, and for bf16 PyTorch chooses the narrower type operator by operator."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        yield


class Loader(ABC):
    """One backend's way from the eager model to the one that serves."""

    steps: Sequence[Step]
    """In order."""

    def context(self, precision: str) -> contextlib.AbstractContextManager[None]:
        """Around each run."""
        return autocast(precision)

    def prepare(self, state: LoadState, precision: str) -> Made:
        """At build, from an eager model: the backend's files for a precision other than int8."""
        return Made()

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        """For the precision int8."""
        able = [one.name for one in BACKENDS.values() if "int8" in one.flags]
        raise LoadError("this backend has no int8", fix=f"use one of {', '.join(able)}")

    @abstractmethod
    def evidence(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """What this thread really executes, right after a run of one shape: `kind`, and what the backend's
        judge in the catalogue compares."""


def open_loader(backend: str) -> Loader:
    """By its name in the catalogue."""
    module, _, name = BACKENDS[backend].loader.partition(":")
    loader: Loader = getattr(import_module(module), name)()
    return loader
