"""Chooses where torch comes from: PyTorch's CPU-only wheels if their index answers, else pip's own index."""

from __future__ import annotations

import ipaddress
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from setup.errors import SetupError

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # documented on pytorch.org under "Get started"
PROBE_SECONDS = 4.0  # for name look-up, connection and page together
DEFAULT = "default"


@dataclass(frozen=True, kw_only=True)
class TorchSource:
    """Where torch and torchvision come from; both always from the same place."""

    index: str
    """An index's address, or `default` for the one pip is set up with."""
    suffix: str
    """Added to the pinned version: `+cpu`, or nothing."""
    reason: str
    """Why this one, for the person who waits."""


def choose_source(
    asked: str, version: str, python: tuple[int, int], probe: Callable[..., str]
) -> TorchSource:
    """`asked` is TORCH_INDEX: empty (look for the CPU-only wheels), `default`, or an address."""
    if asked == DEFAULT:
        return TorchSource(index=DEFAULT, suffix="", reason="TORCH_INDEX=default")
    if asked:
        return TorchSource(index=asked, suffix="", reason=f"TORCH_INDEX={hide_credentials(asked)}")
    failure = probe(CPU_INDEX, version, python)
    if failure:
        return TorchSource(index=DEFAULT, suffix="", reason=f"the CPU-only wheels' index {failure}")
    return TorchSource(index=CPU_INDEX, suffix="+cpu", reason="the CPU-only wheels' index answered")


def check_index(asked: str) -> None:
    """Refuse a mistyped TORCH_INDEX, and one that anybody on the way can answer, before it is used."""
    if asked in ("", DEFAULT) or re.match(r"(https|file)://", asked) or _is_on_this_machine(asked):
        return
    raise SetupError(
        "TORCH_INDEX must be one of `default`, an address (https://…, file://…, and http://… on this machine "
        "only: what comes without TLS can be anybody's), or empty (the CPU-only wheels when they can be "
        f"reached): got {hide_credentials(asked)}"
    )


def _is_on_this_machine(address: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(address)
        return parts.scheme == "http" and (
            parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
        )
    except ValueError:
        return False


def hide_credentials(address: str) -> str:
    """The address for a log, a message or a file: without the name and password that may stand in it."""
    return re.sub(r"(://)[^/?#]*@", r"\1***@", address)


def probe_index(index: str, version: str, python: tuple[int, int], seconds: float = PROBE_SECONDS) -> str:
    """Empty when the index offers this wheel, else what was wrong.

    In a thread: a name look-up knows no time-out.
    """
    answers: list[str] = []
    worker = threading.Thread(
        target=lambda: answers.append(_ask(index, version, python, seconds)), daemon=True
    )
    worker.start()
    worker.join(seconds)
    return answers[0] if answers else f"did not answer within {seconds:.0f} s"


def _ask(index: str, version: str, python: tuple[int, int], seconds: float) -> str:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=seconds) as answer:
            page = answer.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        return f"cannot be reached ({getattr(error, 'reason', error)})"
    return "" if offers_wheel(page, version, python) else f"has no torch {version} for this Python"


def offers_wheel(page: str, version: str, python: tuple[int, int]) -> bool:
    tag = f"cp{python[0]}{python[1]}"
    wheel = rf"torch-{re.escape(version)}(?:\+|%2B)cpu-{tag}-{tag}-[a-z0-9_]*x86_64\.whl"
    return re.search(wheel, page, re.IGNORECASE) is not None
