"""What a live server can be seen to do: TorchServe's management API, /proc of its workers, their describe.

A setting is never taken from what was asked for. The precision's name is the handler's own word, so it is
checked against the error of the model's answers: arithmetic of 8 bits cannot be as exact as FP32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.engines import ENGINES
from loadtest.experiments.ladder.settings import (
    FILLED,
    IPEX,
    KIT,
    OFF,
    ON,
    ONE_WORKER,
    PINNED,
    SINGLE,
    STOCK,
    UNPINNED,
)
from loadtest.systems.system import System
from server.processes import read_environment
from server.verify.collect import read_launcher, read_libraries, read_thread_cpus

ALLOCATORS = {"jemalloc": "jemalloc", "tcmalloc": "tcmalloc"}
OPENMP = {"iomp": "intel"}
"""Part of a mapped file's name → what it shows."""
EXACT = 5e-4
"""Relative error of logits that FP32 stays below (the archives' own limit), and BF16 and INT8 exceed."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One item of one server."""

    state: str | None
    """In the words of Settings; None where nothing tells."""
    detail: str
    """What it was read from."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What is read of one worker's process."""

    pid: int
    cpus: tuple[int, ...]
    launched: bool
    libraries: tuple[str, ...]
    environment: Mapping[str, str]
    described: Mapping[str, Any]
    """Empty for stock workers, whose handlers do not describe themselves."""


def observe(system: System, model: str) -> dict[str, Seen]:
    """Read a system that runs."""
    described = system.describe_workers(model) if system.is_kit else []
    by_pid = {int(one["pid"]): one for one in described}
    workers = [_read_worker(pid, by_pid.get(pid, {})) for pid in system.list_workers(model)]
    batch = int(system.client.describe(model).get("batchSize", 0))
    return judge_workers(workers, batch_size=batch, model=model)


def _read_worker(pid: int, described: Mapping[str, Any]) -> Worker:
    threads = read_thread_cpus(pid) or {}
    return Worker(
        pid=pid,
        cpus=tuple(sorted({cpu for cpus in threads.values() for cpu in cpus})),
        launched=read_launcher(pid) is not None,
        libraries=tuple(Path(file).name for file in read_libraries(pid) or ()),
        environment=read_environment(pid) or {},
        described=described,
    )


def judge_workers(workers: Sequence[Worker], *, batch_size: int, model: str) -> dict[str, Seen]:
    """All items; workers that differ among themselves are seen as none of the known states."""
    each = [_see_worker(worker, model) for worker in workers]
    items = {item: _merge([one[item] for one in each]) for item in (each[0] if each else {})}
    return {**items, "workers": _see_placement(workers), "batches": _see_batches(batch_size)}


def _merge(seen: Sequence[Seen]) -> Seen:
    states = list(dict.fromkeys(one.state for one in seen))
    if len(states) == 1:
        return seen[0]
    return Seen(state=" and ".join(map(str, states)), detail="; ".join(one.detail for one in seen))


def _see_worker(worker: Worker, model: str) -> dict[str, Seen]:
    is_kit, told = bool(worker.described.get("archive_id")), worker.described
    silent = Seen(state=None, detail="this handler does not tell")
    return {
        "handler": Seen(state=KIT if is_kit else STOCK, detail="describe" if is_kit else "no describe"),
        "channels_last": _see_channels_last(told) if is_kit else silent,
        "ipex": _see_ipex(worker),
        "graph": _see_graph(told) if is_kit else silent,
        "allocator": _see_library(worker, ALLOCATORS, "allocator", "system"),
        "openmp": _see_library(worker, OPENMP, "openmp", "gnu"),
        "precision": _see_precision(told) if is_kit else silent,
        "buckets": _see_buckets(worker, model) if is_kit else silent,
        "packing": _see_packing(told) if is_kit else silent,
    }


def _see_graph(described: Mapping[str, Any]) -> Seen:
    """An engine's own by its name: `inductor library` is inductor's."""
    kind, engine = str(described["graph"]["kind"]), str(described["engine"]["name"])
    return Seen(state=engine if kind.startswith(engine) else kind, detail=f"describe: {kind}")


def _see_ipex(worker: Worker) -> Seen:
    """Its library is mapped into every process that has imported it."""
    mapped = [name for name in worker.libraries if name.startswith(ENGINES[IPEX].library)]
    return Seen(state=ON if mapped else OFF, detail=", ".join(mapped) or "not in the process")


def _see_library(worker: Worker, names: Mapping[str, str], item: str, default: str) -> Seen:
    """By the symbol's own address where the worker describes itself, else by what is mapped."""
    told = worker.described.get(item)
    if told:
        return Seen(state=told["name"], detail=Path(str(told["library"])).name)
    mapped = [(state, file) for file in worker.libraries for name, state in names.items() if name in file]
    if not mapped:
        return Seen(state=default, detail="nothing is preloaded")
    return Seen(state=mapped[0][0], detail=", ".join(file for _, file in mapped))


def _see_channels_last(described: Mapping[str, Any]) -> Seen:
    found = described["memory_format"]
    if not found["applicable"]:
        return Seen(state=ON, detail="does not apply")
    total, done, layout = found["convolutions"], found["channels_last_weights"], found["input"]
    state = {(True, "channels_last"): ON, (False, "contiguous"): OFF}.get((done == total, layout))
    detail = f"{done} of {total} convolutions, input {layout}"
    return Seen(state=state or detail, detail=detail)


def _see_precision(described: Mapping[str, Any]) -> Seen:
    """What it says, unless its answers are too exact for that."""
    said, error = described["precision"], described["self_check"]["relative_error"]
    detail = f"says {said}, error of its logits {error:.1g}"
    return Seen(state="fp32" if error < EXACT else said if said != "fp32" else "not exact", detail=detail)


def _see_buckets(worker: Worker, model: str) -> Seen:
    options = json.loads(worker.environment.get("CPU_KIT_OPTIONS", "{}")).get(model, {})
    off = "buckets" in options.get("off", ())
    return Seen(state=OFF if off else ON, detail="CPU_KIT_OPTIONS of the process")


def _see_packing(described: Mapping[str, Any]) -> Seen:
    found = described["packing"]
    if not found["applicable"]:
        return Seen(state=ON, detail="does not apply")
    return Seen(state=ON if found["on"] else OFF, detail=f"describe, fill {described['fill']['fill']}")


def _see_placement(workers: Sequence[Worker]) -> Seen:
    """Pinned: each was started by the launcher, and no two may run on the same CPU."""
    cpus = [cpu for worker in workers for cpu in worker.cpus]
    shown = " | ".join(",".join(map(str, worker.cpus)) for worker in workers)
    launched = bool(workers) and all(worker.launched for worker in workers)
    detail = f"CPUs {shown}, {'by the launcher' if launched else 'no launcher'}"
    if launched and len(cpus) == len(set(cpus)):
        return Seen(state=PINNED, detail=detail)
    return Seen(state=ONE_WORKER if len(workers) == 1 else UNPINNED, detail=detail)


def _see_batches(size: int) -> Seen:
    return Seen(state=SINGLE if size == 1 else FILLED, detail=f"batch size {size}")
