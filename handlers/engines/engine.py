"""What every engine says and does: what it offers, what it prepares at build, how it loads, how it proves it.

Standard library alone when imported; what needs more is imported where it is used.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from handlers.shared.errors import LoadError

if TYPE_CHECKING:
    import torch

    from handlers.shared.shapes import Shape
    from handlers.shared.state import LoadState
    from handlers.shared.step import Step

BASELINE = "fp32"
"""In every archive: what the other precisions are compared with."""
BF16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Either computes BF16 in hardware; without them it is converted to FP32 and back, slower than FP32."""
INT8_FLAGS = ("avx2",)
"""It multiplies INT8 twice as fast as FP32 (Zen 3), with VNNI or AMX faster still."""
WIDE_SUMS = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Each adds products of INT8 in 32 bits; AVX2 alone adds two of them in 16, where they may not fit."""


def has_flags(flags: Sequence[str], cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU has one of them; () needs none."""
    return not flags or bool({*flags} & {*cpuinfo.read_text(encoding="utf-8").split()})


def has_wide_sums() -> bool:
    """Without them activations or weights are given seven bits, at build: with eight, sums saturate (relative
    error of a small convolution's logits 0.46, seen)."""
    return has_flags(WIDE_SUMS)


OTHER_SUMS = "was calibrated on a CPU that adds products in 32 bits, and this one adds them in 16"
"""What `needs_wide_sums` finds, as a person is told."""


def needs_wide_sums(judged: Mapping[str, Any]) -> bool:
    """Whether what the gate judged on another CPU would saturate on this one; `judged` is of one variant."""
    return bool(judged.get("wide_sums")) and not has_wide_sums()


class OutOfTimeError(Exception):
    """The bound would be passed before a recipe could be judged."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was asked of a live model's graph, and what it shows."""

    asked: str
    got: str
    good: bool


@dataclass(frozen=True, kw_only=True)
class Made:
    """What an engine prepared at build."""

    name: str = ""
    """Of the INT8 recipe, as the build prints it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What a load reads beside the weights, by name in the archive."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What an engine may look at when it quantises."""

    directory: Path
    """The archive as it will be unpacked."""
    load_eager: Callable[[], LoadState]
    batch: Callable[[LoadState, int | None], Iterator[tuple[torch.Tensor, ...]]]
    """Inputs of runs of the calibration data, or of its first so many samples; each set valid until the next
    is asked for."""


class Recipe(Protocol):
    """One way to quantise, to be tried."""

    @property
    def name(self) -> str: ...
    @property
    def further(self) -> bool:
        """Whether it starts from the best of those that do not."""


class Quantiser(Protocol):
    """Quantises one model by one recipe after the other."""

    @property
    def recipes(self) -> Sequence[Any]:
        """In the order they are tried: the cheapest to run first."""

    def make(self, recipe: Any, base: Made | None, deadline: float) -> Made:
        """By one of `recipes`; `base` is what a further one starts from. LoadError where it cannot be made,
        OutOfTimeError where it would be later than `deadline` (time.monotonic)."""


class Engine(ABC):
    """One way to compute a model."""

    name: ClassVar[str]
    """As BACKEND names it."""
    reason: ClassVar[str]
    """Why one would take it."""
    distribution: ClassVar[str | None] = None
    """What must be installed for it beside PyTorch."""
    tools: ClassVar[tuple[str, ...]] = ()
    """Programs that must be there where models are built for it."""
    flags: ClassVar[Mapping[str, tuple[str, ...]]]
    """Precision it offers → CPU flags of which it needs one; () needs none."""
    channels_last: ClassVar[bool] = False
    """Whether the memory format of tensors is its load's business."""

    switch: ClassVar[str] = ""
    """Property of TorchServe's configuration that names it; `TS_` and the same in capitals in a worker."""
    variables: ClassVar[tuple[str, ...]] = ()
    """How the names of environment variables begin that its libraries read."""
    cache_bound: ClassVar[str] = ""
    """That of them which bounds a cache of primitives of its own."""

    library: ClassVar[str] = ""
    """How the file begins that is mapped into each process which has imported it; empty: nothing tells."""
    onednn: ClassVar[str] = ""
    """Module with the switch of the log of a copy of oneDNN that is its own."""
    binds_memory: ClassVar[bool] = False
    """Whether its runtime binds single mappings to the NUMA node that it computes on, whatever is planned."""

    @property
    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """From the eager model to the one that serves, in order."""

    @property
    def switch_variable(self) -> str:
        """What a worker sees `switch` as (ConfigManager.getBackendConfiguration)."""
        return f"TS_{self.switch.upper()}" if self.switch else ""

    def is_installed(self, folders: Sequence[str] | None = None) -> bool:
        """Whether it could be imported here, or by a Python that looks in these folders."""
        path = sys.path if folders is None else [*folders]
        return self.distribution is None or any(distributions(name=self.distribution, path=path))

    def compiles_at_start(self, off: Collection[str]) -> bool:
        """Whether a worker's load takes minutes, with these steps switched off."""
        return False

    def must_be_judged(self, precision: str) -> bool:
        """Whether a build prepares or judges it: only FP32 as it comes can be left to a load's own check."""
        return precision != BASELINE or bool(self.list_files(precision))

    def context(self, precision: str) -> AbstractContextManager[None]:
        """Around each run."""
        from handlers.shared.precision import precision_context

        return precision_context(precision)

    def list_files(self, precision: str) -> tuple[str, ...]:
        """What a load in this precision reads beside the weights, prepared at build."""
        return ()

    def prepare(self, state: LoadState, precision: str) -> Made:
        """At build, from an eager model: what `list_files` names for a precision, but for int8."""
        return Made()

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        """For the precision int8."""
        raise LoadError(f"{self.name} has no int8", cure=f"use one of {', '.join(self.flags)}")

    @abstractmethod
    def describe_graph(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """What this thread really executes, right after a run of one shape; `kind` and what `judge` wants."""

    @abstractmethod
    def judge(self, graph: Mapping[str, Any], *, precision: str, threads: int, off: frozenset[str]) -> Proof:
        """Whether a described graph is this engine's, in this precision and on so many threads."""
