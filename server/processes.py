"""Finds the processes of one server by the mark in their environment, what they do, and ends them."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.plan import INSTANCES_FOLDER
from server.rundir import MARK

PROC = Path("/proc")
JAVA_MAIN = "org.pytorch.serve.ModelServer"
WORKER_SCRIPT = "model_service_worker.py"
LAUNCHER_MODULE = "torch.backends.xeon.run_cpu"

DRAIN_SECONDS = 35.0
"""How long accepted requests may take to be answered once a server or an instance shall end, at most."""
GRACEFUL_SECONDS = DRAIN_SECONDS + 10.0
"""Then Java closes its sockets, tells the workers and leaves: 2-3 s seen on two cores without load."""
TERMINATE_SECONDS = 5.0
KILL_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process; pid and start time together are never used again, a pid alone is."""

    pid: int
    """Process id."""
    start_ticks: int
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat)."""
    parent_pid: int
    """Process id of the parent now; 1 (or a sub-reaper) for an orphan."""
    command: tuple[str, ...]
    """Command line."""

    @property
    def is_java(self) -> bool:
        """TorchServe's frontend."""
        return JAVA_MAIN in self.command

    @property
    def is_supervisor(self) -> bool:
        """What owns the others."""
        return self._runs_command("supervise")

    @property
    def is_keeper(self) -> bool:
        """What started one TorchServe and stays with it."""
        return self._runs_command("keep")

    @property
    def is_door(self) -> bool:
        """HAProxy."""
        return bool(self.command) and Path(self.command[0]).name == "haproxy"

    @property
    def is_worker(self) -> bool:
        """A process that holds a model; its launcher has the same words in its command line."""
        return self._names_worker_script and LAUNCHER_MODULE not in self.command

    @property
    def is_launcher(self) -> bool:
        """The process that pinned a worker and waits for it."""
        return self._names_worker_script and LAUNCHER_MODULE in self.command

    @property
    def role(self) -> str:
        """What it is, in a word."""
        if self.is_java:
            return "TorchServe"
        if self.is_door:
            return "HAProxy"
        if self.is_supervisor:
            return "supervisor"
        if self.is_keeper:
            return "keeper"
        if self.is_launcher:
            return "launcher"
        return "worker" if self.is_worker else "helper"

    def _runs_command(self, name: str) -> bool:
        """`python -m server NAME`."""
        words = ("-m", "server", name)
        return any(self.command[place : place + len(words)] == words for place in range(1, 3))

    @property
    def _names_worker_script(self) -> bool:
        return any(word.endswith(WORKER_SCRIPT) for word in self.command)


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process of that id; None when there is none, it is a zombie or it may not be read."""
    try:
        fields = _read_stat(pid, proc)
        command = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    if not fields:
        return None
    words = tuple(word.decode(errors="replace") for word in command.split(b"\0") if word)
    return Process(pid=pid, start_ticks=int(fields[19]), parent_pid=int(fields[1]), command=words)


def _read_stat(pid: int, proc: Path) -> list[str]:
    """Fields 3 … of /proc/PID/stat; none of a zombie."""
    stat = (proc / str(pid) / "stat").read_text(errors="replace")
    # The name (field 2) stands in brackets and may hold blanks and brackets itself.
    fields = stat[stat.rfind(")") + 2 :].split()
    return [] if len(fields) < 20 or fields[0] in ("Z", "X") else fields


def read_environment(pid: int, proc: Path = PROC) -> dict[str, str] | None:
    """The environment the process was started with; None when it cannot be read."""
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def read_pids(proc: Path = PROC) -> list[int]:
    """Ids of all processes, in order."""
    with os.scandir(proc) as entries:
        return sorted(int(entry.name) for entry in entries if entry.name.isdigit())


def find_marked(run_path: Path, proc: Path = PROC) -> list[Process]:
    """All processes of this run directory's server and of its instances, orphans too; never ourselves or our
    parents."""
    return find_marked_by_run([run_path], proc)[run_path]


def find_marked_by_run(run_paths: Sequence[Path], proc: Path = PROC) -> dict[Path, list[Process]]:
    """The same of several run directories, in one look at all processes.

    The same path in another mount namespace may be another folder: on a host, root sees every container's.
    """
    found: dict[Path, list[Process]] = {path: [] for path in run_paths}
    ours = _own_line(proc)
    for pid, mark in _read_marks(proc):
        of = [
            path for path in run_paths if mark == f"{path}" or mark.startswith(f"{path}/{INSTANCES_FOLDER}/")
        ]
        process = read_process(pid, proc) if of and pid not in ours else None
        for path in of:
            if process and _sees_same_folder(pid, path, proc):
                found[path].append(process)
    return found


def _read_marks(proc: Path) -> Iterator[tuple[int, str]]:
    """Of each process whose environment may be read and names a run directory."""
    for pid in read_pids(proc):
        with contextlib.suppress(OSError):
            # A supervisor reads this of all processes every second; pathlib takes four times as long.
            with os.fdopen(os.open(f"{proc}/{pid}/environ", os.O_RDONLY), "rb", buffering=0) as file:
                environment = b"\0" + file.read()
            _, named, rest = environment.partition(f"\0{MARK}=".encode())
            if named:
                yield pid, rest.partition(b"\0")[0].decode(errors="surrogateescape")


def _sees_same_folder(pid: int, run_path: Path, proc: Path) -> bool:
    """Whether the path is the same folder there as here: systemd's PrivateTmp= and others make namespaces."""
    if _read_mount_namespace(pid, proc) == _read_mount_namespace("self", proc):
        return True
    try:
        theirs = Path(f"{proc / str(pid) / 'root'}{run_path}").stat()
        return os.path.samestat(theirs, Path(run_path).stat())
    except OSError:
        return False


def _read_mount_namespace(pid: int | str, proc: Path) -> str | None:
    """Its identity (namespaces(7)); None when it may not be read, or the kernel does not show any."""
    try:
        return str((proc / str(pid) / "ns" / "mnt").readlink())
    except OSError:
        return None


def find_users_of(environment: Path, proc: Path = PROC) -> list[Process]:
    """TorchServes and workers of any user that run on the Python of a virtual environment."""
    python = environment.absolute() / "bin" / "python"
    names = {str(python), str(environment.resolve() / "bin" / "python")}
    found = (read_process(pid, proc) for pid in read_pids(proc))
    return [one for one in found if one and one.role != "helper" and names & set(one.command)]


def name_run(process: Process, proc: Path = PROC) -> str:
    """The process with its run directory, as far as it may be seen."""
    run = (read_environment(process.pid, proc) or {}).get(MARK)
    return f"{process.role} {process.pid}" + (f" of RUN_DIR={run}" if run else "")


def _own_line(proc: Path) -> set[int]:
    line, pid = set(), os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        process = read_process(pid, proc)
        pid = process.parent_pid if process else 0
    return line


def is_alive(process: Process, proc: Path = PROC) -> bool:
    """Whether this very process still runs; another one under its pid does not count."""
    now = read_process(process.pid, proc)
    return now is not None and now.start_ticks == process.start_ticks


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; silently nothing when it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError), _hold(process.pid) as handle:
        if not is_alive(process):
            return
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)


@contextlib.contextmanager
def _hold(pid: int) -> Iterator[int | None]:
    """A handle (pidfd_open(2)) that stays with the process when its id is used again.

    None where the kernel (before 5.3), a container's system call filter or Python's build knows no handles.
    """
    handle = _open_handle(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _open_handle(pid: int) -> int | None:
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as problem:
        if problem.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def wait_for_child(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Until it ends, for so long at most; asleep where the kernel can wake us, as Popen.wait looks again and
    again: 20 times in half a second."""
    if child.poll() is not None:
        return
    with _hold(child.pid) as handle:
        if handle is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            return
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(1000 * seconds)


def wait_until_gone(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Those that still run after at most so many seconds."""
    deadline = time.monotonic() + seconds
    remaining = [process for process in processes if is_alive(process)]
    while remaining and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        remaining = [process for process in remaining if is_alive(process)]
    return remaining


def end_all(find: Callable[[], list[Process]], graceful_seconds: float = GRACEFUL_SECONDS) -> list[Process]:
    """End every process `find` gives, who owns the others first and gently, then what remains; those seen."""
    seen: dict[tuple[int, int], Process] = {}

    def look() -> list[Process]:
        found = find()
        seen.update({(process.pid, process.start_ticks): process for process in found})
        return found

    _signal_and_wait([p for p in look() if p.is_supervisor], signal.SIGTERM, graceful_seconds)
    _signal_and_wait([p for p in look() if p.is_java], signal.SIGTERM, graceful_seconds)
    _signal_and_wait(look(), signal.SIGTERM, TERMINATE_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    # A process may start another one between the look and the signal: look again until nothing is found.
    while (found := look()) and time.monotonic() < deadline:
        _signal_and_wait(found, signal.SIGKILL, 1.0)
    return list(seen.values())


def _signal_and_wait(processes: list[Process], number: signal.Signals, seconds: float) -> None:
    for process in processes:
        send_signal(process, number)
    wait_until_gone(processes, seconds)


AT_WORK = 0.01
"""Of a core: a worker that computes uses far more, one that hangs or sleeps next to nothing."""

_STOPPED = ("T", "t")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One process at one time."""

    stopped: bool
    """Stopped by a signal or a debugger: it does nothing at all until it is continued."""
    cpu_seconds: float
    """CPU time of all its threads since it began."""
    start_ticks: int
    """When it began: ticks since boot."""
    switches: int = 0
    """Times its main thread went to sleep of its own accord: a worker's does so after each batch."""


def read_activity(pid: int, proc: Path = PROC) -> Activity | None:
    """None when there is no such process, or it is not to be read."""
    try:
        fields = _read_stat(pid, proc)
    except OSError:
        return None
    if not fields:
        return None
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
    return Activity(
        stopped=fields[0] in _STOPPED,
        cpu_seconds=cpu,
        start_ticks=int(fields[19]),
        switches=int(read_status(pid, proc).get("voluntary_ctxt_switches", 0)),
    )


def read_status(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Its lines by name; empty when there is no such process."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def read_resident_mib(pid: int, proc: Path = PROC) -> int | None:
    """Resident memory; None when there is no such process, or it has none."""
    return _parse_mib(read_status(pid, proc).get("VmRSS", ""))


def read_anonymous_mib(pid: int, proc: Path = PROC) -> int | None:
    """The part of it that is no file's. Libraries are in the memory once, however many processes map them."""
    return _parse_mib(read_status(pid, proc).get("RssAnon", ""))


def _parse_mib(kib: str) -> int | None:
    words = kib.split()
    return int(words[0]) // 1024 if words else None


def read_age(pid: int, proc: Path = PROC) -> float | None:
    """Seconds since the process began; None when it is gone."""
    found = read_activity(pid, proc)
    try:
        uptime = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return None if found is None else uptime - found.start_ticks / _TICKS_A_SECOND
