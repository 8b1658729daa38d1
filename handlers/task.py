"""What a model's handler says of it: its eager module, its samples, its inputs and its answers.

An author overrides `load_model`, `decode`, `encode` and, where stacking is not right, `collate` and `split`.
The rest has defaults for samples of one size; texts, which differ in length, override them too. Backends, the
steps of a load and the builder see a handler as this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map_only

from handlers.backends.catalogue import BACKENDS, INT8
from handlers.definition import Definition
from handlers.request import Request
from handlers.shared.errors import LoadError
from handlers.shared.options import BUCKETS, LoadOptions
from handlers.shared.outputs import find_worst, list_tensors, relative_error, split_outputs
from handlers.shared.shapes import Layout, ShapeGrid, WholeBatch
from handlers.shared.work import Work

Inputs = tuple[Any, ...]
"""A model's arguments, each a tensor or a tree of tensors."""


class Task(ABC):
    """A model that answers samples; one instance serves one worker."""

    convolutional: ClassVar[bool] = False
    """Whether channels_last applies."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose versions belong in the describe answer."""
    fuses: ClassVar[bool] = False
    """Whether its model has what IPEX fuses, so that a graph without is none of IPEX's."""
    freeze: ClassVar[bool] = True
    """Whether the model can be traced; False: it is served eager, with any trees as inputs and outputs."""
    LIMITS: ClassVar[Mapping[str, int]] = {}
    """What one request may cost where no plan says so, by name, with the unit in the name."""
    max_inputs = 1
    """Samples in one request, at most."""
    batch: int | None = None
    """Requests in one batch, at most (LoadOptions.batch)."""
    definition: Definition
    """What the archive says of its model."""
    model_dir: Path
    """The archive, unpacked."""

    @abstractmethod
    def load_model(self) -> torch.nn.Module:
        """The eager FP32 model in eval mode, with its weights from `model_dir`."""

    @abstractmethod
    def decode(self, request: Request) -> Any:
        """A sample, or a list of samples where the request holds a list and wants a list back; BadRequest
        says what is wrong with it."""

    @abstractmethod
    def encode(self, output: Any, sample: Any) -> Any:
        """The model's output for one sample → what the answer's JSON holds."""

    def collate(self, samples: Sequence[Any]) -> Any:
        """The model's inputs from samples, valid until the next call; by default one tensor, stacked. A tuple
        is all of its arguments; a list or dict of tensors, as a tensor, its only one."""
        return torch.stack(list(samples))

    def split(self, outputs: Any, samples: Sequence[Any]) -> list[Any]:
        """The model's outputs → one for each sample: along dimension 0 of tensors, also in tuples and dicts;
        the items of a list. What comes after the samples' own is left."""
        return split_outputs(outputs, len(samples))

    def compare(self, got: Any, expected: Any) -> float:
        """How far a sample's output is from the one of eager FP32: the largest
        ||got − expected|| / ||expected|| of its tensors; infinite where their number or shapes differ."""
        ours, theirs = list_tensors(got), list_tensors(expected)
        if len(ours) != len(theirs):
            return float("inf")
        return find_worst([0.0, *map(relative_error, ours, theirs)])

    def make_examples(self, count: int) -> list[Any]:
        """`count` samples made from the archive's example, of all lengths, the shortest length's first;
        different ones if they can be."""
        decoded = self.decode(Request(content=self.example))
        samples = decoded if isinstance(decoded, list) else [decoded]
        return [samples[number % len(samples)] for number in range(count)]

    @property
    def example(self) -> bytes:
        """The body of the request that the archive was proven with."""
        return (self.model_dir / self.definition.example.file).read_bytes()

    def configure(self, definition: Definition, directory: Path) -> None:
        """Read what is needed of the definition before anything else is called."""
        self.definition, self.model_dir = definition, directory
        self.limits = dict(self.LIMITS)
        self.layout = self.choose_layout(frozenset())

    def adopt(self, options: LoadOptions) -> None:
        """Put what the server asks over the handler's own; LoadError for a limit that this handler does not
        know, and for what only a graph can compute where it wants none."""
        if not self.freeze and (
            "trace" not in BACKENDS[options.backend].switches or options.precision == INT8
        ):
            raise LoadError(
                f"{options.backend} {options.precision} needs a graph of the model, and the handler has none",
                fix="freeze = False: use BACKEND=ipex or eager, and PRECISION=fp32 or bf16",
            )
        unknown = sorted(set(options.limits) - set(self.LIMITS))
        if unknown:
            raise LoadError(
                f"limits must be among {', '.join(self.LIMITS) or 'none'}: got {', '.join(unknown)}",
                fix="plan and build with the same version of the kit: `make plan`, `make models`",
            )
        self.limits = {**self.LIMITS, **options.limits}
        self.batch = options.batch
        self.layout = self.choose_layout(options.off)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those of the archive that a batch can fill."""
        most = self.definition.batch_sizes[-1] if self.batch is None else self.batch * self.max_inputs
        return tuple(size for size in self.definition.batch_sizes if size <= most)

    def choose_layout(self, off: AbstractSet[str]) -> Layout:
        """The shapes to warm and serve; `off` are the SWITCHES that are off."""
        kind = WholeBatch if BUCKETS in off else ShapeGrid
        return kind(batch_sizes=self.batch_sizes)

    def describe_packing(self) -> dict[str, Any]:
        """Whether samples share rows, and why not where they do not."""
        return {"applicable": False, "on": False, "reason": "all samples have one size"}

    def plan_work(self, seconds_each: float) -> Work:
        """What a batch may hold, where a token (or a sample) takes so many seconds of a core."""
        return Work(seconds_each=seconds_each)

    def measure(self, sample: Any) -> int:
        """How long a sample is, in the unit of the layout's lengths; 0 where all have one size."""
        return 0

    def collate_rows(self, rows: Sequence[Sequence[Any]], *, length: int) -> Any:
        """The model's inputs from rows of samples, for which it answers in their order; `length` is the rows'
        (Run)."""
        return self.collate([sample for row in rows for sample in row])

    def to_inputs(self, rows: Sequence[Sequence[Any]], *, length: int, channels_last: bool) -> Inputs:
        """As `collate_rows`, images in the memory format that the model has."""
        inputs = as_arguments(self.collate_rows(rows, length=length))
        if not self.convolutional:
            return inputs
        form = torch.channels_last if channels_last else torch.contiguous_format
        images: Inputs = tree_map_only(
            torch.Tensor, lambda one: one.contiguous(memory_format=form) if one.dim() == 4 else one, inputs
        )
        return images

    def answer_alone(self, model: torch.nn.Module, sample: Any) -> Any:
        """Outputs of one sample by the eager model, with nothing that serving adds."""
        length = self.layout.fit_length(self.measure(sample))
        with torch.no_grad():
            return model(*self.to_inputs([[sample]], length=length, channels_last=False))


def as_arguments(inputs: Any) -> Inputs:
    """A model's: what is no tuple is its only one."""
    return inputs if isinstance(inputs, tuple) else (inputs,)
