"""Imports IPEX, only where it can live.

On a wrong machine it ends the process without an exception: it calls os._exit(127) on a torch of another
minor version and can die of an illegal instruction without AVX2; both are asked of the metadata and of
/proc/cpuinfo before the import. Where Triton is installed, the import starts a pool of compilers beside the
process, 600 MiB and 3.5 s of CPU. It prints to standard output.
"""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from handlers.backends.catalogue import IPEX
from handlers.shared.errors import LoadError


def import_ipex(cpuinfo: Path = Path("/proc/cpuinfo")) -> ModuleType:
    """The IPEX module; LoadError says what does not fit."""
    _check_versions()
    if "avx2" not in cpuinfo.read_text(encoding="utf-8").split():
        raise LoadError("IPEX needs a CPU with AVX2; this one has none", fix="set ipex_enable=false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import intel_extension_for_pytorch as ipex
    return ipex


def _check_versions() -> None:
    torch_version = version("torch")
    try:
        ipex_version = version(IPEX)
    except PackageNotFoundError as error:
        raise LoadError(
            f"ipex_enable=true, but {IPEX} is not installed",
            fix=f"pip install {IPEX}=={_minor(torch_version)}.*, or set ipex_enable=false",
        ) from error
    if _minor(torch_version) != _minor(ipex_version):
        raise LoadError(
            f"torch and {IPEX} must share their minor version: got {torch_version} and {ipex_version}",
            fix="run `make setup`, or install matching versions",
        )


def _minor(full: str) -> str:
    return ".".join(full.split(".")[:2])
