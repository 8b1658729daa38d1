"""Reads back from the live process what is really in effect, so that verify need not believe the settings."""

from __future__ import annotations

import ctypes
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def count_channels_last(model: torch.nn.Module) -> tuple[int, int]:
    """(convolutions, how many of them have channels_last weights) of an eager model."""
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    return len(weights), sum(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


NO_BATCH = "not 4-D"
"""A detector takes images apart, and makes its batch itself."""


def describe_layout(tensor: torch.Tensor) -> str:
    """`channels_last`, `contiguous`, `strided`, or of what is no batch of images `not 4-D`."""
    if tensor.dim() != 4:
        return NO_BATCH
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "contiguous" if tensor.is_contiguous() else "strided"


class _SymbolInfo(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _LoadedObject(ctypes.Structure):
    """The start of dl_phdr_info of dl_iterate_phdr(3)."""

    _fields_ = (("base", ctypes.c_void_p), ("name", ctypes.c_char_p))


def find_symbol_library(symbol: str) -> str | None:
    """The file that a symbol of this process resolves to, in the dynamic linker's own search order."""
    process = ctypes.CDLL(None)
    found = _find_file(process, symbol)
    if found != os.path.realpath("/proc/self/exe"):
        return found
    # An executable at a fixed address (Debian's python3) gives its own stub for a function it calls; what
    # the stub jumps to is the first loaded library, in search order, that defines the symbol.
    return next((file for file in _list_libraries(process) if _defines(file, symbol)), found)


def _find_file(library: ctypes.CDLL, symbol: str) -> str | None:
    try:
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
    except AttributeError:
        return None
    info = _SymbolInfo()
    lookup = ctypes.CDLL(None).dladdr
    lookup.argtypes = (ctypes.c_void_p, ctypes.POINTER(_SymbolInfo))
    if not lookup(address, ctypes.byref(info)) or not info.file:
        return None
    return os.path.realpath(os.fsdecode(info.file))


def _list_libraries(process: ctypes.CDLL) -> list[str]:
    """All loaded files but the executable, preloaded ones first, as the linker searches them."""
    files: list[str] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)

    def note(loaded: Any, _size: int, _data: Any) -> int:
        name = os.fsdecode(loaded.contents.name or b"")
        if name.startswith("/"):
            files.append(os.path.realpath(name))
        return 0

    process.dl_iterate_phdr(kind(note), None)
    return files


def _defines(file: str, symbol: str) -> bool:
    """Whether a loaded library has a symbol itself, and not only through what it needs."""
    return _find_file(ctypes.CDLL(file), symbol) == file


def describe_openmp() -> dict[str, Any]:
    """Which library GOMP_parallel, the entry that PyTorch's parallel regions call, resolves to."""
    library = find_symbol_library("GOMP_parallel") or _mapped("libgomp")
    name = "intel" if library and "iomp" in Path(library).name else "gnu"
    return {"library": library, "name": name, "max_threads": torch.get_num_threads()}


def _mapped(fragment: str) -> str | None:
    """The first mapped file whose name holds `fragment`; for libraries outside the global symbol scope."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = (line.split()[-1] for line in maps)
        return next((path for path in paths if fragment in Path(path).name), None)


JEMALLOC_OPTIONS = (
    ("dirty_decay_ms", ctypes.c_ssize_t),
    ("muzzy_decay_ms", ctypes.c_ssize_t),
    ("lg_extent_max_active_fit", ctypes.c_size_t),
    ("background_thread", ctypes.c_bool),
    ("oversize_threshold", ctypes.c_size_t),
    ("metadata_thp", ctypes.c_char_p),
)
"""Options of jemalloc that decide its speed here, with mallctl's types (jemalloc(3), `opt.*`)."""


def describe_allocator() -> dict[str, Any]:
    """Which allocator `malloc` resolves to, and jemalloc's options as the live allocator reports them."""
    library = find_symbol_library("malloc")
    base = Path(library or "").name
    if "jemalloc" in base:
        return {"name": "jemalloc", "library": library, "options": _read_jemalloc_options()}
    name = "tcmalloc" if "tcmalloc" in base else "system"
    return {"name": name, "library": library, "options": {}}


def _read_jemalloc_options() -> dict[str, Any]:
    mallctl = ctypes.CDLL(None).mallctl
    options: dict[str, Any] = {}
    for name, kind in JEMALLOC_OPTIONS:
        value, size = kind(), ctypes.c_size_t(ctypes.sizeof(kind))
        failed = mallctl(
            f"opt.{name}".encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        read = None if failed else value.value
        options[name] = read.decode() if isinstance(read, bytes) else read
    return options


def describe_threads() -> dict[str, int]:
    """PyTorch's thread counts in this process."""
    return {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}


def read_versions(distributions: tuple[str, ...]) -> dict[str, str | None]:
    """Installed versions by distribution name; None where one is not installed."""
    versions: dict[str, str | None] = {}
    for name in distributions:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions
