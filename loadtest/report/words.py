"""Figures and machines in words, the same way in every table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.results.kept import Kept
from loadtest.results.stats import Interval

INVALID = "INVALID"
NONE = "–"
VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
NEAR_ONE = (0.8, 1.25)
WIDTHS = (("amx_int8", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
"""The widest first: what a core multiplies in a cycle differs by as much as what the kit gains."""


def show_rate(rate: Interval | None) -> tuple[str, str]:
    """Requests a second, and its interval."""
    if rate is None:
        return NONE, NONE
    digits = 1 if rate.value >= 10 else 2
    return f"{rate.value:.{digits}f}", show_interval(rate, digits)


def show_ratio(ratio: Interval | None) -> str:
    """`2.31× (2.25-2.37)`; near 1 with a digit more, as it is compared with 1; from 10 on with one less."""
    if ratio is None:
        return NONE
    digits = 3 if NEAR_ONE[0] < ratio.value < NEAR_ONE[1] else 2 if ratio.value < 10 else 1
    return f"{ratio.value:.{digits}f}× ({show_interval(ratio, digits)})"


def show_interval(interval: Interval, digits: int) -> str:
    return f"{interval.low:.{digits}f}-{interval.high:.{digits}f}"


def show_ms(found: Interval | None) -> str:
    return NONE if found is None else f"{found.value:.0f} ms"


def describe_machine(host: Mapping[str, Any]) -> str:
    """`a 2-core AVX-512 virtual machine (AMD, 23 GiB)`; no name of the machine itself."""
    width = next((name for flag, name in WIDTHS if flag in host["flags"]), "x86-64")
    kind = "virtual machine" if host["virtual"] else "machine"
    vendor = VENDORS.get(host["vendor"], host["vendor"])
    return f"a {host['usable_cores']}-core {width} {kind} ({vendor}, {host['memory_gib']} GiB)"


def describe_host(kept: Kept) -> str:
    """Where and when a result was measured, with the versions that decide its speed."""
    known = {name: number for name, number in kept.host.get("versions", {}).items() if number}
    listed = ", ".join(f"{name} {known[name]}" for name in SHOWN if name in known)
    return f"Measured on {describe_machine(kept.host)}, {kept.began[:10]}; {listed}."


SHOWN = ("torch", "intel_extension_for_pytorch", "openvino", "torchserve", "transformers", "locust")
