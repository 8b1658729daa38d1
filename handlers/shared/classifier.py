"""What a kind of model must provide: its eager module, its samples, its inputs and its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from handlers.shared.definition import Definition
from handlers.shared.errors import LoadError
from handlers.shared.options import BUCKETS, LoadOptions
from handlers.shared.shapes import Layout, ShapeGrid, WholeBatch
from handlers.shared.work import Work


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, read: what its answers are made from."""

    inputs: Sequence[Any]
    """Decoded pictures, or texts; `encode` makes samples of them."""
    many: bool = False
    """True when the request held a list and wants a list back."""


class Classifier(ABC):
    """A model that turns samples into logits; one instance serves one worker."""

    convolutional: ClassVar[bool]
    """Whether channels_last applies."""
    libraries: ClassVar[tuple[str, ...]]
    """Distributions whose versions belong in the describe answer."""
    activation: str
    """How the outputs are read: one of outputs.SOFTMAX, SIGMOID, NONE."""
    max_inputs = 1
    """Samples in one request, at most."""
    batch: int | None = None
    """Requests in one batch, at most (LoadOptions.batch)."""
    LIMITS: ClassVar[Mapping[str, int]] = {}
    """What one request may cost where no plan says so, by name, with the unit in the name."""

    def configure(self, definition: Definition) -> None:
        """Read what is needed of the definition before anything else is called."""
        self.definition = definition
        self.labels = definition.labels
        self.activation = definition.model["activation"]
        self.limits = dict(self.LIMITS)
        self.layout = self.choose_layout(frozenset())

    def adopt(self, options: LoadOptions) -> None:
        """Put what the server asks over the handler's own; LoadError for a limit that this handler does not
        know."""
        unknown = sorted(set(options.limits) - set(self.LIMITS))
        if unknown:
            raise LoadError(
                f"limits must be among {', '.join(self.LIMITS) or 'none'}: got {', '.join(unknown)}",
                cure="plan and build with the same version of the kit: `make plan`, `make models`",
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

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """The eager FP32 model with its weights, in eval mode; `forward(*inputs)` → logits (N, classes)."""

    @abstractmethod
    def read_request(self, body: Any) -> Request:
        """Decode one request body (bodies.Body, or its content alone); RequestError says what is wrong with
        it."""

    def encode(self, inputs: Sequence[Any]) -> list[Any]:
        """Samples from the inputs of a whole batch of requests, in order."""
        return list(inputs)

    @abstractmethod
    def example_samples(self, count: int) -> list[Any]:
        """`count` different samples made from the canary, of all lengths, the shortest length's first."""

    def sample_length(self, sample: Any) -> int:
        """How long a sample is, in the unit of the layout's lengths."""
        return 0

    @abstractmethod
    def to_inputs(
        self, rows: Sequence[Sequence[Any]], *, length: int, channels_last: bool
    ) -> tuple[torch.Tensor, ...]:
        """The model's inputs from rows of samples, for which it answers in their order (and may answer more
        after them); valid until the next call."""

    def answer_alone(self, model: torch.nn.Module, sample: Any) -> torch.Tensor:
        """Logits, (1, classes), of one sample by the eager model, with nothing that serving adds."""
        length = self.layout.fit_length(self.sample_length(sample))
        with torch.no_grad():
            logits: torch.Tensor = model(*self.to_inputs([[sample]], length=length, channels_last=False))
        return logits

    @abstractmethod
    def to_answer(self, scores: np.ndarray, sample: Any) -> Any:
        """One sample's answer from its scores, float32 (outputs,): probabilities, or the values themselves
        where `activation` is NONE."""
