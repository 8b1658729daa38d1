"""What the threads of workers did in a window: where they ran, waited, moved and faulted.

Read from /proc/PID/task/TID/{stat,schedstat,sched,status} (proc(5)), which needs no right, tool or counter.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from loadtest.servers.base import Running
from server.processes import PROC, read_resident_mib
from server.throttling import find_loss, read_throttled
from server.verify.collect import read_libraries

GLANCE_S, COUNTS_EVERY = 0.1, 10
"""A stretch of OpenMP work is shorter, a move to another CPU is not; all counts take three more files."""
BUSY, ASLEEP = 0.02, -1
"""Of a core: less is housekeeping; in a film strip: it used no CPU time since the glance before."""
COUNTS = ["cpu_s", "minor_faults", "run_s", "wait_s", "migrations", "involuntary"]
"""Since a thread began: CPU seconds, to 10 ms; pages given without a disk; seconds on a CPU and in its queue;
moves to another CPU; switches that took its CPU while it had work."""
USE = ["pid", "tid", "name", "cores", "waiting", "migrations", "involuntary", "minor_faults", "strip"]
LIBRARIES = ("iomp", "gomp", "libomp", "jemalloc", "tcmalloc")
_TICKS = os.sysconf("SC_CLK_TCK")
_MIGRATIONS = re.compile(r"^(?:se\.)?nr_migrations\s*:\s*(\d+)", re.MULTILINE)
_SWITCHES = re.compile(r"^nonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


def read_threads(pid: int, *, full: bool, proc: Path = PROC) -> Iterator[dict[str, Any]]:
    """COUNTS and last CPU of each; None is not counted here, or without `full` all but the first two."""
    try:
        folders = sorted((proc / str(pid) / "task").iterdir())
    except OSError:
        return
    for folder in folders:
        if not (stat := _read(f"{folder}/stat")):
            continue
        # The name stands in brackets, and may hold blanks and brackets itself.
        name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        files = ("schedstat", "sched", "status")
        schedstat, sched, status = (_read(f"{folder}/{file}") if full else "" for file in files)
        ran, waited = ([int(word) / 1e9 for word in schedstat.split()[:2]] + [None, None])[:2]
        moved, taken = _MIGRATIONS.search(sched), _SWITCHES.search(status)
        yield {
            "pid": pid, "tid": int(folder.name), "name": name, "running": fields[0] == "R",
            "cpu": int(fields[36]), "cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS,
            "minor_faults": int(fields[7]), "run_s": ran, "wait_s": waited,
            "migrations": int(moved[1]) if moved else None, "involuntary": int(taken[1]) if taken else None,
        }  # fmt: skip


def _read(file: str) -> str:
    with contextlib.suppress(OSError), open(file, "rb", buffering=0) as opened:  # noqa: PTH123 (slow)
        return opened.read().decode(errors="replace")
    return ""


class ThreadWatch:
    """Reads the workers that are there at its begin until its end; `throttled` with all counts."""

    def __init__(self, running: Running, proc: Path = PROC) -> None:
        self.pids = [pid for pids in running.list_workers().values() for pid in pids]
        self.glances: list[dict[str, Any]] = []
        self.throttled: dict[float, dict[int, Any]] = {}
        self._proc, self._stop = proc, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        began, number, cpu = time.monotonic(), 0, 0.0
        while not self._stop.wait(GLANCE_S * bool(number)):
            before = time.thread_time()
            self.look(time.time(), full=number % COUNTS_EVERY == 0)
            number, cpu = number + 1, cpu + time.thread_time() - before
        self.cost = round(cpu / (time.monotonic() - began), 4)

    def look(self, at: float, *, full: bool) -> None:
        read = (read_threads(pid, full=full, proc=self._proc) for pid in self.pids)
        self.glances += [{"at": at, **one} for each in read for one in each]
        if full:
            self.throttled[at] = {pid: read_throttled(pid, self._proc) for pid in self.pids}

    def __enter__(self) -> ThreadWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.resident = {pid: read_resident_mib(pid, self._proc) for pid in self.pids}
        files = {Path(file).name for pid in self.pids for file in read_libraries(pid, self._proc) or ()}
        self.libraries = sorted(file for file in files if any(part in file for part in LIBRARIES))

    def cut(self, begin: float, end: float) -> Mapping[str, Any]:
        """Between the first and last reading of all counts; `throttled_ms` are of each period of 100 ms."""
        full = [at for at in self.throttled if begin <= at <= end]
        if len(full) < 2 or not self.glances:
            return {}
        every = find_use(pd.DataFrame(self.glances).query("@full[0] <= at <= @full[-1]"))
        workers = []
        for pid, own in ((pid, every[every["pid"] == pid]) for pid in self.pids):
            before, now = (self.throttled[at][pid] for at in (full[0], full[-1]))
            lost = round(find_loss(before, now).ms_per_period, 3) if now else None
            known = {"minor_faults": round(float(own["minor_faults"].sum()), 1), "throttled_ms": lost}
            workers.append({"pid": pid, "threads": len(own), "resident_mib": self.resident[pid], **known})
        busy = every[every["cores"] > BUSY].sort_values("cores", ascending=False)
        threads = busy.astype(object).where(busy.notna(), None).to_dict("records")
        return {"workers": workers, "threads": threads, "libraries": self.libraries, "cost_cores": self.cost}


def find_use(glances: pd.DataFrame) -> pd.DataFrame:
    """USE of each thread at the last glance: `waiting` is a share (0 to 1) of the time it could have run;
    counts are a second's, since its begin where it began in between; `strip` is the CPU at each glance."""
    at, key = glances["at"], ["pid", "tid"]
    starts, ends = (glances[at == moment].set_index(key) for moment in (at.min(), at.max()))
    begun = starts[COUNTS].astype(float).reindex(ends.index)
    begun[~ends.index.isin(starts.index)] = 0.0
    rates = ((ends[COUNTS].astype(float) - begun) / (at.max() - at.min())).round(4)
    film = glances.pivot(index="at", columns=key)
    strips = film["cpu"].where((film["cpu_s"].diff() > 0) | film["running"].eq(True), ASLEEP).astype(int)
    waiting = (rates["wait_s"] / (rates["run_s"] + rates["wait_s"]).clip(lower=1e-9)).round(4)
    cores, strip = rates["run_s"].fillna(rates["cpu_s"]), [strips[one].tolist() for one in ends.index]
    return rates.assign(name=ends["name"], cores=cores, waiting=waiting, strip=strip).reset_index()[USE]
