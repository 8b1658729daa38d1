"""A ladder's folder with known figures, as a run would have left it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.ladder.blocks import cut_blocks
from loadtest.ladder.keep import Header, keep_block, start_folder
from loadtest.ladder.rungs import Rung, find_rung, list_left_out, list_rungs
from loadtest.ladder.settings import ITEMS

INPUTS: dict[str, Any] = {
    "host": {
        "usable_cores": 2,
        "vendor": "AuthenticAMD",
        "model_name": "AMD EPYC",
        "flags": ["avx2", "avx512f"],
        "cpu_total": 2,
        "memory_gib": 23,
        "virtual": True,
    },
    "versions": {"torch": "2.8.0", "torchserve": "0.12.0"},
    "archive": "abc",
    "payloads": "def",
    "plan": {"workers": 2, "batch_size": 16},
    "arguments": {"top": "--precision int8; 64 users"},
    "timing": {"seconds": 5.0, "warm_up": 3.0, "repeats": 3},
}
REFUSED = {"without-ipex": "PRECISION=int8 needs IPEX: got --no-ipex"}
NOISE = (1.0, 1.01, 0.99)


def make_header(model: str = "resnet50", **changes: Any) -> Header:
    """The whole ladder, in blocks of six."""
    rungs, left_out = list_rungs(model), list_left_out(model)
    facts = {"weights": "random (seed 0)", "notes": ["random weights"], "fp32": []}
    values = {
        "model": model,
        "time": "2025-01-02T03:04:05+00:00",
        "inputs": INPUTS,
        "facts": facts,
        "rungs": tuple(rungs),
        "left_out": tuple(left_out),
        "blocks": tuple(cut_blocks([*rungs, *left_out], lambda _: 1, 1e6)),
    }
    return Header(**{**values, **changes})


def find_rate(header: Header, name: str) -> float:
    """10 requests/s for the first rung, 1.5 × with each that follows; OpenMP changes nothing."""
    rung = find_rung(header.all_rungs, name)
    if rung.before is None:
        return 10.0
    factor = 1.0 if rung.own == ("openmp",) else 1.5
    below = find_rate(header, rung.before)
    return below / factor if rung in header.left_out else below * factor


def see(rung: Rung) -> dict[str, Any]:
    """Everything in effect as asked; stock does not tell what its handler does."""
    silent = {"channels_last", "graph", "precision", "buckets"} if rung.is_stock else set()
    return {
        item: {"state": None if item in silent else getattr(rung.settings, item), "detail": "seen"}
        for item in ITEMS
    }


def make_block(header: Header, number: int) -> dict[str, Any]:
    """What a run keeps of a block."""
    members = [name for name in header.blocks[number - 1].members if name not in REFUSED]
    rungs = {name: find_rung(header.all_rungs, name) for name in members}
    agreement = {"same": 31, "judged": 32, "near_ties": 0, "largest_difference": 0.0123}
    return {
        "time": header.time,
        "seconds": 100.0,
        "cpus": 2,
        "refused": {n: why for n, why in REFUSED.items() if n in header.blocks[number - 1].members},
        "servers": {name: {"seen": see(rung), "agreement": agreement} for name, rung in rungs.items()},
        "changed_workers": {name: [] for name in members},
        "users": dict.fromkeys(members, 8),
        "sides": [make_side(name, find_rate(header, name)) for name in members],
    }


def make_side(name: str, rate: float, *, others: float = 0.0) -> dict[str, Any]:
    """Three repeats; a server's own noise, in another order for each."""
    shift = len(name) % len(NOISE)
    noise = (*NOISE[shift:], *NOISE[:shift])
    cpu = {"seconds": 5.0, "by_role": {"worker": 8.0, "TorchServe": 0.5, "load generator": 0.2}}
    cpu |= {"others": others, "stolen": 0.0}
    repeats = [{"rate": rate * one, "seconds": 5.0, "cpu": cpu, "model_share": None} for one in noise]
    return {"name": name, "repeats": repeats}


def write_ladder(results: Path, header: Header | None = None, *, blocks: int | None = None) -> Path:
    """The folder, with so many blocks finished (all)."""
    known = header or make_header()
    folder = start_folder(known, results)
    for number in range(1, (blocks if blocks is not None else len(known.blocks)) + 1):
        keep_block(folder, number, make_block(known, number))
    return folder
