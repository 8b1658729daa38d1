"""Inductor: PyTorch's own compiler; a worker loads what was compiled when the model was built.

The library (`inductor-<precision>.so`, by AOTInductor) holds code and packed weights for all served shapes:
a worker needs no compiler and compiles nothing. It is opened where TorchServe unpacked it, and not as a
`.pt2` package, which each worker would unpack once more, to stay in /tmp where one is killed. Its code is one
CPU's (g++ -march=native) and one PyTorch's: both are in the record beside it and asked first. With `freeze`
switched off a worker compiles the model itself (compiled.py).
Source: torch 2.8, `_inductor/codecache.py` (AotCodeCompiler), `_export/__init__.py` (aot_load).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from handlers.engines.compiled import COMPILER, compile_here, judge_compiled, unless_compiled, unless_frozen
from handlers.engines.engine import (
    BASELINE,
    BF16_FLAGS,
    INT8_FLAGS,
    Calibration,
    Engine,
    Made,
    Proof,
    Quantiser,
)
from handlers.shared.definition import BUILD_AGAIN
from handlers.shared.errors import LoadError
from handlers.shared.step import Step, unless_off

if TYPE_CHECKING:
    import torch

    from handlers.shared.shapes import Shape
    from handlers.shared.state import LoadState

KIND = "inductor library"
PT2E = ("torch.ao.quantization", "torchao.quantization.pt2e")
"""PyTorch's own static quantisation of exports: in torch 2.8, and since it left torch in torchao."""
CPU_PREFIXES = ("avx", "amx", "fma", "f16c", "bmi", "abm", "adx", "movbe", "gfni", "vaes", "vpclmul", "sse4")
"""Flags of /proc/cpuinfo whose instructions g++ may use once it is told to compile for this CPU."""
SHIM = "aoti_torch_cpu_"
"""Calls of PyTorch's operators from compiled code begin so."""
OWN = "generated"
"""Inductor's own kernels are counted as one kind, whatever they fuse."""
PACKED = ("linear_pointwise", "convolution_pointwise")
"""In the names of oneDNN's operators with packed weights; what is fused to them follows."""
QUANTISED = ("qlinear_pointwise", "qconv_pointwise", "qconv2d_pointwise")
"""INT8's of them."""
PLAIN = ("addmm", "mm", "convolution", "linear")
"""How the names of those begin that multiply by weights as they are: FP32's by MKL."""
WEIGHTS = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Precision → the type of what is packed."""
TYPES = {0: "uint8", 1: "int8", 3: "int32", 4: "int64", 6: "float32", 11: "bool", 15: "bfloat16"}
"""c10::ScalarType."""


def list_names(precision: str) -> tuple[str, str]:
    """The library and its record."""
    return f"inductor-{precision}.so", f"inductor-{precision}.json"


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    return sorted({word for word in cpuinfo.read_text().split() if word.startswith(CPU_PREFIXES)})


def describe_library(library: Path) -> dict[str, Any]:
    """What it is, and what it is bound to where it is made."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        digest = hashlib.sha256(content).hexdigest()
    return {"sha256": digest, "torch": version("torch"), "cpu_flags": read_cpu_flags()}


def read_files(library: Path, precision: str) -> dict[str, bytes]:
    """What an archive holds of it."""
    record = json.dumps(describe_library(library), indent=1).encode()
    return dict(zip(list_names(precision), (library.read_bytes(), record), strict=True))


def check_library(state: LoadState) -> None:
    """Refuse what was compiled for another CPU, which would end the process, or for another PyTorch."""
    library, record = (state.classifier.definition.directory / name for name in _names(state))
    built = json.loads(record.read_text(encoding="utf-8"))
    here = describe_library(library)
    lacking = sorted(set(built["cpu_flags"]) - set(here["cpu_flags"]))
    if lacking or built["torch"] != here["torch"]:
        wanted = f"a CPU with {', '.join(lacking)}" if lacking else f"torch {built['torch']}"
        got = "which this one lacks" if lacking else f"and this is {here['torch']}"
        name, precision = state.classifier.definition.name, state.options.precision
        raise LoadError(
            f"{library.name} was compiled for {wanted}, {got}",
            cure="delete the archive, and build it on this machine: "
            f"make models MODELS={name} BACKEND=inductor PRECISION={precision}",
        )
    if built["sha256"] != here["sha256"]:
        raise LoadError(f"{library.name} is not what was compiled", cure=BUILD_AGAIN)
    state.facts["library"] = {"sha256": here["sha256"], "built": built["sha256"], "cpu_lacks": lacking}


def load_library(state: LoadState) -> None:
    """Takes the place of the eager model, whose memory is free for its weights."""
    import torch

    library, _ = _names(state)
    state.model = torch.nn.Identity()
    state.model = load_file(state.classifier.definition.directory / library)
    # Its code reads what it was compiled with, whatever strides a tensor has.
    state.channels_last = state.classifier.convolutional
    state.graph_kind = KIND


def _names(state: LoadState) -> tuple[str, str]:
    return list_names(state.options.precision)


def load_file(library: Path) -> torch.nn.Module:
    import torch

    class Compiled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.library = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.library.run(list(inputs))[0]

    return Compiled().eval()


def list_offers(folders: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Precision → CPU flags; INT8 where its quantiser is. Where no PyTorch is (before a set-up) nothing is
    said against it yet.
    """
    offers: dict[str, tuple[str, ...]] = {"fp32": (), "bf16": BF16_FLAGS}
    quantises = find_pt2e(folders) or PathFinder.find_spec("torch", folders) is None
    return {**offers, "int8": INT8_FLAGS} if quantises else offers


def find_pt2e(folders: Sequence[str] | None = None) -> str | None:
    """The one of PT2E that is installed; never imports it."""
    for home in PT2E:
        package, *inner = home.split(".")
        spec = PathFinder.find_spec(package, folders)
        places = (spec and spec.submodule_search_locations) or ()
        if any(Path(place, *inner, "quantize_pt2e.py").exists() for place in places):
            return home
    return None


class InductorEngine(Engine):
    """FP32, BF16 and static INT8."""

    name = "inductor"
    reason = "PyTorch's own compiler, ahead of time: nothing beside PyTorch, but g++ where models are built"
    tools = (COMPILER,)
    flags: ClassVar[Mapping[str, tuple[str, ...]]] = list_offers()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Code for another CPU must not run before it is refused."""
        return (
            Step(name="check_library", run=check_library, skip=unless_compiled),
            Step(name="freeze", run=load_library, skip=unless_off("freeze")),
            Step(name="compile", run=compile_here, skip=unless_frozen),
        )

    def compiles_at_start(self, off: Collection[str]) -> bool:
        """The library is what `freeze` loads."""
        return "freeze" in off

    def context(self, precision: str) -> contextlib.AbstractContextManager[None]:
        """Types are in the compiled code, and it records nothing for a gradient."""
        return contextlib.nullcontext()

    def list_files(self, precision: str) -> tuple[str, ...]:
        return list_names(precision)

    def prepare(self, state: LoadState, precision: str) -> Made:
        from handlers.engines.aot import compile_library

        with compile_library(state, precision) as library:
            return Made(files=read_files(library, precision))

    def make_quantiser(self, calibration: Calibration, *, convolutional: bool) -> Quantiser:
        from handlers.engines.aot_int8 import AotQuantiser

        return AotQuantiser(calibration)

    def describe_graph(self, state: LoadState, ran: Shape) -> dict[str, Any]:
        """What a profiler saw of a run, and the types of the library's constants."""
        import torch

        inputs = state.inputs(ran)
        return {
            "kind": state.graph_kind,
            "operators": count_executed(lambda: state.run(inputs)),
            "weights": count_weights(state.model),
            "library": state.facts.get("library", {}),
            "threads": torch.get_num_threads(),
            "compiled_here": count_compiled(),
        }

    def judge(self, graph: Mapping[str, Any], *, precision: str, threads: int, off: frozenset[str]) -> Proof:
        """The library that was built, for this CPU, all of its products by packed weights of the precision,
        on the planned threads; and nothing was compiled here."""
        if "freeze" in off:
            packed, _ = count_products(graph.get("operators") or {}, BASELINE)
            return judge_compiled(graph, packed, threads)
        packed, plain = count_products(graph.get("operators") or {}, precision)
        weights = graph.get("weights") or {}
        narrow = sum(weights.get(kind, 0) for kind in WEIGHTS.values() if kind != "float32")
        typed = weights.get(WEIGHTS[precision], 0) if precision != "fp32" or not narrow else 0
        library = graph.get("library") or {}
        sound = library.get("sha256") is not None and library.get("sha256") == library.get("built")
        seen = f"{packed} products by packed weights, {plain} by others, {_render(weights)}"
        live, compiled = graph.get("threads"), graph.get("compiled_here")
        return Proof(
            asked=f"{KIND} as built for this CPU, all products by packed {WEIGHTS[precision]} weights, "
            f"{threads} threads, 0 graphs compiled here",
            got=f"{graph.get('kind', 'unknown')}{'' if sound else ' that was not built'}"
            f"{_render_lacking(library)}, {seen}, {live} threads, {compiled} graphs compiled here",
            good=graph.get("kind") == KIND
            and sound
            and library.get("cpu_lacks") == []
            and plain == 0 < packed <= typed
            and (live, compiled) == (threads, 0),
        )


def _render(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(weights.items())) or "no weights"


def _render_lacking(library: Mapping[str, Any]) -> str:
    lacking = library.get("cpu_lacks")
    return f" for a CPU with {', '.join(lacking)}" if lacking else ""


def count_executed(run: Callable[[], object]) -> dict[str, int]:
    """How often each kind of kernel ran."""
    from torch.autograd.profiler import profile

    with profile(use_cpu=True) as seen:
        run()
    names = (_name_kernel(event.name) for event in seen.function_events)
    return dict(sorted(Counter(name for name in names if name).items()))


def _name_kernel(event: str) -> str | None:
    """None for what is no kernel; PyTorch's own, which eager models run, keep their names."""
    if event.startswith(SHIM):
        return event.removeprefix(SHIM)
    if event.startswith("graph_"):
        return OWN
    return event if event.startswith("aten::") else None


def count_products(operators: Mapping[str, int], precision: str) -> tuple[int, int]:
    """(by packed weights of this kind, by others); products of activations, as in attention, are neither."""
    kinds = Counter[str | None]()
    for name, count in operators.items():
        kinds[_name_product(name)] += count
    kinds.pop(None, None)
    packed = kinds.pop("quantised" if precision == "int8" else "packed", 0)
    return packed, sum(kinds.values())


def _name_product(operator: str) -> str | None:
    if any(one in operator for one in QUANTISED):
        return "quantised"
    if any(one in operator for one in PACKED):
        return "packed"
    return "plain" if operator.removeprefix("aten::").startswith(PLAIN) else None


def count_weights(model: torch.nn.Module) -> dict[str, int]:
    """Type → constants of a library."""
    library: Any = getattr(model, "library", None)
    types = library.get_constant_names_to_dtypes().values() if library else ()
    return dict(sorted(Counter(TYPES.get(one, str(one)) for one in types).items()))


def count_compiled() -> int:
    """Graphs that were compiled in this process: the compiler counts them, where it was imported."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return int(compiler.counters["stats"]["unique_graphs"]) if compiler else 0
