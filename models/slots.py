"""Processes in the workers' places, one in each, that are told to compute at the same time.

Each is `python -m models.timing`: it says when it is ready, then answers each line `SIZE SECONDS` with the
seconds that its batches took, and the share of the time that it had its CPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

READY = "ready"


class SlotError(Exception):
    """A process ended before it answered; the text is its own reason."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One process."""

    process: subprocess.Popen[str]
    log: IO[str]
    """What it wrote to standard error."""

    def read(self) -> str:
        """The next line; SlotError when there is none."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SlotError(self._find_cause())
        return line.strip()

    def ask(self, line: str) -> None:
        """A process that has ended is found out when it is read."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Whatever it does."""
        self.process.kill()
        self.process.communicate()
        self.log.close()

    def _find_cause(self) -> str:
        """A backend can end a process without an exception; then the last line it wrote has to do."""
        code = self.process.wait()
        self.log.seek(0)
        lines = [line.strip() for line in self.log if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or [f"it ended with code {code}"])[-1]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What batches of one size took."""

    seconds: list[float]
    """Of each, one place after the other."""
    busy: float
    """Share of the time that the process had its CPU, in the place where that was least; what is missing to
    1 others took."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """All of them, each ready."""

    slots: Sequence[Slot]

    def time(self, size: int, seconds: float) -> Taken:
        """Batches of `size`, one after the other in each place, for so long in all at once."""
        for slot in self.slots:
            slot.ask(f"{size} {seconds}")
        answers = [json.loads(slot.read()) for slot in self.slots]
        return Taken(
            seconds=[second for answer in answers for second in answer["seconds"]],
            busy=min(answer["busy"] for answer in answers),
        )


@contextlib.contextmanager
def start_slots(
    command: Sequence[str], *, slots: Sequence[Sequence[int]], environment: Mapping[str, str], cwd: Path
) -> Iterator[Slots]:
    """One on the CPUs of each slot; the body runs when all are ready."""
    with contextlib.ExitStack() as at_end:
        running = []
        for cpus in slots:
            slot = _start(command, cpus, environment, cwd)
            at_end.callback(slot.end)
            running.append(slot)
        for slot in running:
            _wait_until_ready(slot)
        yield Slots(slots=running)


def _start(command: Sequence[str], cpus: Sequence[int], environment: Mapping[str, str], cwd: Path) -> Slot:
    log: IO[str] = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 (Slot.end)
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(environment),
        # From its first instruction on: OpenMP and jemalloc count the CPUs when they are loaded.
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    return Slot(process=process, log=log)


def _wait_until_ready(slot: Slot) -> None:
    while slot.read() != READY:
        pass
