"""What a kind of model must provide: its eager module, its samples, its inputs and its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from handlers.shared.definition import Definition


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, decoded: its samples, and what its answer needs to know."""

    samples: Sequence[Any]
    many: bool = False
    """True when the request held a list and wants a list back."""
    facts: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """Per sample, what the answer must say of the input, e.g. that a text was cut."""


class Classifier(ABC):
    """A model that turns samples into logits; one instance serves one worker."""

    convolutional: ClassVar[bool]
    """Whether channels_last applies."""
    libraries: ClassVar[tuple[str, ...]]
    """Distributions whose versions belong in the describe answer."""

    def configure(self, definition: Definition) -> None:
        """Read what is needed of the definition before anything else is called."""
        self.definition = definition
        self.labels = definition.labels

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths samples are padded to, ascending; (0,) where all samples have one size."""
        return (0,)

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """The eager FP32 model with its weights, in eval mode; `forward(*inputs)` → logits (N, classes)."""

    @abstractmethod
    def read_request(self, body: Any) -> Request:
        """Decode one request body; RequestError says what is wrong with it."""

    @abstractmethod
    def example_samples(self, count: int, *, length: int) -> list[Any]:
        """`count` different samples made from the canary that fit `length`; for trace, warm-up, check."""

    def sample_length(self, sample: Any) -> int:
        """How long a sample is, in the unit of `lengths`."""
        return 0

    @abstractmethod
    def to_inputs(
        self, samples: Sequence[Any], *, length: int, channels_last: bool
    ) -> tuple[torch.Tensor, ...]:
        """Pack samples into the model's input tensors, each with len(samples) rows."""

    @abstractmethod
    def to_answer(self, probabilities: np.ndarray, facts: dict[str, Any]) -> Any:
        """One sample's answer from its probabilities, float32 (classes,)."""
