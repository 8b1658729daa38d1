"""The machine and the versions, as they are kept with every result; no name of the machine itself."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from config.topology import read_topology

PACKAGES = (
    *("torch", "intel_extension_for_pytorch", "openvino", "torchserve"),
    *("transformers", "locust", "numpy", "matplotlib"),
)


def read_host() -> dict[str, Any]:
    """The machine and the versions, as they are kept with every result."""
    machine = read_topology()
    return {
        "cpu": machine.model_name,
        "vendor": machine.vendor,
        "flags": machine.flags,
        "cpus": machine.cpu_total,
        "usable_cores": machine.usable_cores,
        "memory_gib": round(machine.memory_limit_mib / 1024),
        "virtual": is_virtual(Path("/proc/cpuinfo").read_text(errors="replace")),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "versions": {name: _read_version(name) for name in PACKAGES},
    }


def is_virtual(cpuinfo: str) -> bool:
    """Linux gives the CPUs of a guest this flag."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def _read_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
