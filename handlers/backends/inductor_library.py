"""A library that Inductor compiled ahead of time: its files, how it is opened, and what it executes.

It is opened where TorchServe unpacked it, and not as a `.pt2` package, which each worker would unpack once
more, to stay in /tmp where one is killed. Its code is one CPU's (g++ -march=native) and one PyTorch's: both
are in the record beside it.
Source: torch 2.8, `_inductor/codecache.py` (AotCodeCompiler), `_export/__init__.py` (aot_load).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

from handlers.backends.catalogue import BACKENDS

CPU_PREFIXES = ("avx", "amx", "fma", "f16c", "bmi", "abm", "adx", "movbe", "gfni", "vaes", "vpclmul", "sse4")
"""Flags of /proc/cpuinfo whose instructions g++ may use once it is told to compile for this CPU."""
SHIM = "aoti_torch_cpu_"
"""Calls of PyTorch's operators from compiled code begin so."""
GENERATED = "generated"
"""Inductor's own kernels are counted as one kind, whatever they fuse."""
TYPES = {0: "uint8", 1: "int8", 3: "int32", 4: "int64", 6: "float32", 11: "bool", 15: "bfloat16"}
"""c10::ScalarType."""


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    return sorted({word for word in cpuinfo.read_text().split() if word.startswith(CPU_PREFIXES)})


def describe_library(library: Path) -> dict[str, Any]:
    """What it is, and what it is bound to where it is made."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        digest = hashlib.sha256(content).hexdigest()
    return {"sha256": digest, "torch": version("torch"), "cpu_flags": read_cpu_flags()}


def read_files(library: Path, precision: str) -> dict[str, bytes]:
    """What an archive holds of it: the library, and its record."""
    record = json.dumps(describe_library(library), indent=1).encode()
    names = BACKENDS["inductor"].files[precision]
    return dict(zip(names, (library.read_bytes(), record), strict=True))


def load_file(library: Path) -> torch.nn.Module:
    """The module that it computes."""
    return Library(library).eval()


class Library(torch.nn.Module):
    """Runs the compiled code on the calling thread's OpenMP team."""

    def __init__(self, library: Path) -> None:
        super().__init__()
        self.library = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.library.run(list(inputs))[0]


def count_executed(run: Callable[[], object]) -> dict[str, int]:
    """How often each kind of kernel ran."""
    with profile(use_cpu=True) as seen:
        run()
    names = (_name_kernel(event.name) for event in seen.function_events)
    return dict(sorted(Counter(name for name in names if name).items()))


def _name_kernel(event: str) -> str | None:
    """None for what is no kernel; PyTorch's own, which eager models run, keep their names."""
    if event.startswith(SHIM):
        return event.removeprefix(SHIM)
    if event.startswith("graph_"):
        return GENERATED
    return event if event.startswith("aten::") else None


def count_weights(model: torch.nn.Module) -> dict[str, int]:
    """Type → constants of a library."""
    library: Any = getattr(model, "library", None)
    types = library.get_constant_names_to_dtypes().values() if library else ()
    return dict(sorted(Counter(TYPES.get(one, str(one)) for one in types).items()))


def count_compiled() -> int:
    """Graphs that were compiled in this process: the compiler counts them, where it was imported."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return int(compiler.counters["stats"]["unique_graphs"]) if compiler else 0
