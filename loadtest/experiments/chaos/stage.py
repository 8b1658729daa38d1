"""The server under test and what a fault may use of it; whatever was done to it is undone, in any case."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.experiments.chaos.clock import wrapped_java
from loadtest.experiments.chaos.load import Target, make_photos
from loadtest.experiments.chaos.volume import Volume
from loadtest.experiments.chaos.watched import Watched, find_all
from loadtest.systems.fleet import Site
from loadtest.systems.kit import kit_server
from loadtest.systems.system import ROOT, System
from server.processes import Process, end_all, send_signal
from server.rundir import RunDir
from server.verify.findings import DIFFERS

MODEL = "resnet50"
PRECISION = "int8"
HAPROXY, NONE = "haproxy", "none"
PORTS = 100
"""From one server's to the next one's: a door and two sets of four instances."""
COMMAND_S = 300.0
"""A reload loads with the lowest priority: two instances of two workers took more than 120 s at 80 % load."""
TIMED_OUT = 124
"""As timeout(1) has it."""
PATIENCE_S = 90.0
"""Until a server that was hurt before is whole again; else it is started anew."""


class NotDoneError(LoadTestError):
    """This machine cannot do it; the message says what is missing."""


@dataclass(kw_only=True)
class Stage:
    """A server that is up."""

    system: System
    run: RunDir
    watched: Watched
    target: Target
    store: Path
    """With archives of its own, which may be damaged."""
    asked: Sequence[str]
    """Arguments of `python -m config`."""
    volume: Volume | None = None
    """That its run directory is on, where it could be given one of its own."""
    clock: Path | None = None
    """Sets the clock of a JVM that was started while it is there; None without libfaketime."""
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What is to be done after the fault, whatever happened."""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.system.url.rpartition(":")[2])

    @property
    def archive(self) -> Path:
        return self.store / f"{MODEL}.mar"

    def kill(self, process: Process) -> None:
        send_signal(process, signal.SIGKILL)
        self.notes.append(f"SIGKILL to {process.role} {process.pid}")

    def halt(self, process: Process) -> None:
        """Let go on at the end, if it is still there."""
        send_signal(process, signal.SIGSTOP)
        self.undo.callback(send_signal, process, signal.SIGCONT)
        self.notes.append(f"SIGSTOP to {process.role} {process.pid}")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`python -m server …` of its run directory."""
        command = [sys.executable, "-m", "server", words[0], "--run-dir", str(self.run.path), *words[1:]]
        try:
            return subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=False
            )
        except subprocess.TimeoutExpired:
            said = f"`server {words[0]}` did not end within {COMMAND_S:g} s"
            return subprocess.CompletedProcess(command, TIMED_OUT, stdout="", stderr=said)

    def reload(self) -> subprocess.CompletedProcess[str]:
        """As `make reload` with the knobs that it was started with."""
        where = ("--models", MODEL, "--port", str(self.port), "--run-dir", str(self.run.path))
        return self.command("reload", "--", *where, *self.asked)

    def verify(self) -> tuple[bool, tuple[str, ...]]:
        """Whether all is as planned, and what is not."""
        found = self.system.verify() or {"good": False, "error": "no plan to compare with"}
        return bool(found["good"]), tuple(list_differences(found))

    def take_words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(notes, problems) since the last time."""
        words = tuple(self.notes), tuple(self.problems)
        self.notes.clear()
        self.problems.clear()
        return words


def list_differences(found: dict) -> Iterator[str]:
    """Of verify's JSON: what differs, in a few words each."""
    if found.get("error"):
        yield str(found["error"])
    for one in found.get("findings", []):
        if one.get("state") == DIFFERS:
            whose = " ".join(str(one[key]) for key in ("model", "pid") if one.get(key))
            yield f"{whose or 'server'}: {one['item']}: asked {one['asked']}, got {one['got']}"[:200]


@contextlib.contextmanager
def open_stage(
    site: Site, front: str, *, name: str, port: int, volume: bool = False, clock: bool = False
) -> Iterator[Stage]:
    """A kit server of its own in a folder of that name; all that it was is ended with it."""
    folder = site.folder / name
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(Volume.mounted(folder)) if volume else None
        folder.mkdir(parents=True, exist_ok=True)
        store, wrapped = site.folder / f"{name}-store", site.folder / f"{name}-clock"
        for scratch in (store, wrapped):
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        copy_archives(site.store, store)
        java = stack.enter_context(wrapped_java(wrapped)) if clock else None
        asked = ("--precision", PRECISION, "--front", front, "--model-store", str(store))
        run = RunDir.at(folder)
        stack.callback(end_strays, run, site.say)
        system = stack.enter_context(kit_server(front, folder, port=port, model=MODEL, arguments=asked))
        stage = Stage(
            system=system,
            run=run,
            watched=Watched(run, supervised=front != NONE),
            target=Target(url=system.url, token=read_token(run), payloads=make_photos(MODEL)),
            store=store,
            asked=asked,
            volume=own,
            clock=java,
        )
        stack.callback(stage.undo.close)
        yield stage


def copy_archives(source: Path, target: Path) -> None:
    """They may be damaged, and the others' must not be."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source / f"{MODEL}.mar", target / f"{MODEL}.mar")


def read_token(run: RunDir) -> str:
    """As curl is given it."""
    return run.authorization.read_text(encoding="utf-8").strip().rpartition(" ")[2]


def end_strays(run: RunDir, say: Callable[[str], None]) -> None:
    """What a stop left behind, by its marks; nothing of any other server."""
    left = find_all(run)
    if left:
        say(f"  ended, as the stop had left them: {', '.join(one.name for one in left)}")
        end_all(lambda: [one.process for one in find_all(run)], graceful_seconds=5.0)
