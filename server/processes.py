"""Finds the processes of one server by the mark in their environment, what they do, and ends them.

Read from /proc directly: psutil takes three times as long, and the supervisor reads every second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from config.plan import INSTANCES_FOLDER
from server.rundir import MARK

PROC = Path("/proc")
JAVA_MAIN = "org.pytorch.serve.ModelServer"
WORKER_SCRIPT = "model_service_worker.py"
LAUNCHER_MODULE = "torch.backends.xeon.run_cpu"

DRAIN_SECONDS = 35.0
"""How long accepted requests may take to be answered once a server or an instance is to end, at most."""
GRACEFUL_SECONDS = DRAIN_SECONDS + 10.0
"""Then Java closes its sockets, tells the workers and leaves: 2-3 s seen on two cores without load."""
TERMINATE_SECONDS = 5.0
KILL_SECONDS = 5.0
_POLL_SECONDS = 0.1
AT_WORK = 0.01  # of a core: a worker that computes uses far more, one that hangs or sleeps next to nothing

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGES_A_MIB = (1 << 20) // os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process; pid and start time together are never used again, a pid alone is."""

    pid: int
    start_ticks: int  # clock ticks since boot
    parent_pid: int  # that of the parent now; the supervisor's, or 1, for an orphan
    command: tuple[str, ...]

    @property
    def role(self) -> str:
        """TorchServe (its Java), worker, launcher (which pinned a worker and waits for it; the worker's words
        are in its command line too), HAProxy, supervisor, or helper."""
        if JAVA_MAIN in self.command:
            return "TorchServe"
        if any(word.endswith(WORKER_SCRIPT) for word in self.command):
            return "launcher" if LAUNCHER_MODULE in self.command else "worker"
        if self.command and Path(self.command[0]).name == "haproxy":
            return "HAProxy"
        words = ("-m", "server", "supervise")
        return "supervisor" if words in (self.command[1:4], self.command[2:5]) else "helper"

    is_java = property(lambda self: self.role == "TorchServe")
    is_worker = property(lambda self: self.role == "worker")
    is_launcher = property(lambda self: self.role == "launcher")
    is_supervisor = property(lambda self: self.role == "supervisor")


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib takes four times as long
        return file.read()


def _read_stat(pid: int, proc: Path) -> list[str]:
    """Fields 3 … of /proc/PID/stat: state, parent, group, session …; OSError without such a process."""
    stat = _read(f"{proc}/{pid}/stat").decode(errors="replace")
    # The name (field 2) stands in brackets and may hold blanks and brackets itself.
    return stat[stat.rfind(")") + 2 :].split()


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process of that id; None when there is none, it is a zombie or it may not be read."""
    try:
        fields, command = _read_stat(pid, proc), _read(f"{proc}/{pid}/cmdline")
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    words = tuple(word.decode(errors="replace") for word in command.split(b"\0") if word)
    return Process(pid=pid, start_ticks=int(fields[19]), parent_pid=int(fields[1]), command=words)


def read_environment(pid: int, proc: Path = PROC) -> dict[str, str] | None:
    """The environment the process was started with; None when it cannot be read."""
    try:
        raw = _read(f"{proc}/{pid}/environ")
    except OSError:
        return None
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def find_marked(run_path: Path, proc: Path = PROC) -> list[Process]:
    """All processes of this run directory's server and of its instances, orphans too; never ourselves or our
    parents."""
    ours, pid = set[int](), os.getpid()
    while pid > 0 and pid not in ours:
        ours.add(pid)
        process = read_process(pid, proc)
        pid = process.parent_pid if process else 0
    found = []
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):  # noqa: PTH208
        mark = (read_environment(pid, proc) or {}).get(MARK, "")
        of = mark == str(run_path) or mark.startswith(f"{run_path}/{INSTANCES_FOLDER}/")
        if of and pid not in ours and _sees_same_folder(pid, run_path, proc):
            found += [process] if (process := read_process(pid, proc)) else []
    return found


def _sees_same_folder(pid: int, run_path: Path, proc: Path) -> bool:
    """Whether the path is the same folder there as here: on a host, root sees every container's, and
    systemd's PrivateTmp= and others make mount namespaces too."""
    with contextlib.suppress(OSError):  # it may not be read
        if (proc / str(pid) / "ns/mnt").readlink() == (proc / "self/ns/mnt").readlink():
            return True
    try:
        return Path(f"{proc}/{pid}/root{run_path}").samefile(run_path)
    except OSError:
        return False


def reap_orphans(awaited: Collection[int]) -> None:
    """Take leave of ended processes that came under us (PR_SET_CHILD_SUBREAPER). Others wait for those that
    are `awaited`, and for those of our session."""
    with contextlib.suppress(OSError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in awaited or int(_read_stat(found.si_pid, PROC)[3]) == os.getsid(0):
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def is_alive(process: Process, proc: Path = PROC) -> bool:
    """Whether this very process still runs; another one under its pid does not count."""
    now = read_process(process.pid, proc)
    return now is not None and now.start_ticks == process.start_ticks


def open_handle(pid: int) -> int | None:
    """A handle (pidfd_open(2)) that stays with the process when its id is used again, and can be waited for;
    None where this Python or the kernel has none. ProcessLookupError when there is no such process."""
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; silently nothing when it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError), contextlib.ExitStack() as stack:
        if (handle := open_handle(process.pid)) is not None:
            stack.callback(os.close, handle)
        if not is_alive(process):
            return
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)


def end_all(run_path: Path, graceful_seconds: float = GRACEFUL_SECONDS) -> list[Process]:
    """End every marked process, who owns the others first and gently, then what remains; those seen."""
    seen: dict[tuple[int, int], Process] = {}

    def end(number: signal.Signals, seconds: float, *roles: str) -> bool:
        found = find_marked(run_path)
        seen.update({(process.pid, process.start_ticks): process for process in found})
        found = [process for process in found if not roles or process.role in roles]
        for process in found:
            send_signal(process, number)
        until = time.monotonic() + seconds
        while any(map(is_alive, found)) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return bool(found)

    end(signal.SIGTERM, graceful_seconds, "supervisor")
    end(signal.SIGTERM, graceful_seconds, "TorchServe")
    end(signal.SIGTERM, TERMINATE_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    # A process may start another one between the look and the signal: look again until nothing is found.
    while time.monotonic() < deadline and end(signal.SIGKILL, 1.0):
        pass
    return list(seen.values())


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One process at one time."""

    stopped: bool  # stopped by a signal or a debugger: it does nothing at all until it is continued
    cpu_seconds: float  # CPU time of all its threads since it began
    start_ticks: int
    switches: int = 0
    """Times its main thread went to sleep of its own accord: a worker's does so after each batch."""


def read_activity(pid: int, proc: Path = PROC, *, switches: bool = True) -> Activity | None:
    """None when there is no such process, or it is not to be read; `switches` take four times as long."""
    try:
        fields = _read_stat(pid, proc)
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return Activity(
        stopped=fields[0] in "Tt",
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND,
        start_ticks=int(fields[19]),
        switches=int(read_status(pid, proc).get("voluntary_ctxt_switches", 0)) if switches else 0,
    )


def read_status(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Lines of /proc/PID/status by name; empty when there is no such process."""
    try:
        text = _read(f"{proc}/{pid}/status").decode(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def read_resident_mib(pid: int, proc: Path = PROC) -> int | None:
    """Resident memory; None when there is no such process, or it has none."""
    words = read_status(pid, proc).get("VmRSS", "").split()
    return int(words[0]) // 1024 if words else None


def read_anonymous_mib(pid: int, proc: Path = PROC) -> int | None:
    """The part of it that is no file's. Libraries are in the memory once, however many processes map them."""
    try:
        _, resident, shared, *_ = map(int, _read(f"{proc}/{pid}/statm").split())
    except (OSError, ValueError):
        return None
    return (resident - shared) // _PAGES_A_MIB if resident else None


def read_age(pid: int, proc: Path = PROC) -> float | None:
    """Seconds since the process began; None when it is gone."""
    found = read_activity(pid, proc, switches=False)
    try:
        uptime = float(_read(f"{proc}/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return None if found is None else uptime - found.start_ticks / _TICKS_A_SECOND
