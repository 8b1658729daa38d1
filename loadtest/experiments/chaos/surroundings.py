"""Faults around the server: its disk, its archives, its clock; and what a person asks of it: reload, stop."""

from __future__ import annotations

import errno
import time

from loadtest.experiments.chaos.clock import has_library
from loadtest.experiments.chaos.processes import kill_worker
from loadtest.experiments.chaos.stage import PATIENCE_S, NotDoneError, Stage
from loadtest.experiments.chaos.watched import take_first

DISK_S, CLOCK_S = 12.0, 5.0
DAMAGED_BYTES = 4096
JUMPS = ("+2h", "-2h")
"""Forth and back, as a wrong time server and its cure; libfaketime's words."""
AS_IT_IS = "+0"
NO_SUCH_COMMAND = 2


def need_volume(stage: Stage) -> None:
    if stage.volume is None:
        raise NotDoneError(
            "the run directory needs a small file system of its own: root, and a mount of tmpfs"
        )


def fill_disk(stage: Stage) -> None:
    """Logs, state and sockets have no room for a while, in which a worker dies."""
    assert stage.volume is not None  # need_volume
    stage.undo.callback(stage.volume.empty)
    stage.volume.fill()
    stage.notes.append(prove_full(stage))
    kill_worker(stage)
    time.sleep(DISK_S)
    stage.volume.empty()


def prove_full(stage: Stage) -> str:
    """By trying."""
    probe = stage.run.path / "chaos-probe"
    try:
        probe.write_bytes(b"\0" * 8192)
    except OSError as problem:
        return f"a write in the run directory failed with {errno.errorcode.get(problem.errno or 0, '?')}"
    finally:
        probe.unlink(missing_ok=True)
    stage.problems.append("the disk was not full: the fault did not happen")
    return "a write in the run directory went through"


def damage_archive(stage: Stage) -> None:
    """In its middle; then a worker dies, and must come back from what was unpacked of it."""
    damage(stage)
    kill_worker(stage)


def damage(stage: Stage) -> None:
    """Until the end of the fault."""
    whole = stage.archive.read_bytes()
    stage.undo.callback(stage.archive.write_bytes, whole)
    middle = len(whole) // 2
    broken = bytes(byte ^ 0xFF for byte in whole[middle : middle + DAMAGED_BYTES])
    with stage.archive.open("r+b") as file:
        file.seek(middle)
        file.write(broken)
    stage.notes.append(f"{len(broken)} bytes in the middle of {stage.archive.name} inverted")


def take_clock(stage: Stage) -> None:
    """A JVM whose clock can be set takes the place of the first instance's."""
    if stage.clock is None:
        raise NotDoneError(
            "a JVM whose clock can be set needs libfaketime and a C compiler: apt-get install faketime gcc"
        )
    stage.clock.write_text(f"{AS_IT_IS}\n")
    stage.undo.callback(stage.clock.unlink, missing_ok=True)
    stage.kill(take_first("TorchServe", stage.watched.list_java()))
    time.sleep(1.0)
    if not stage.watched.wait_until_full(PATIENCE_S):
        raise NotDoneError(f"an instance with libfaketime was not ready within {PATIENCE_S:g} s")
    if not any(has_library(one.pid) for one in stage.watched.list_java()):
        raise NotDoneError("no JVM has libfaketime: TorchServe took another java than that of PATH")


def set_clock(stage: Stage) -> None:
    """It jumps in the JVM alone; the monotonic clock goes on, as when a time server corrects."""
    assert stage.clock is not None  # take_clock
    for jump in (*JUMPS, AS_IT_IS):
        stage.clock.write_text(f"{jump}\n")
        time.sleep(CLOCK_S)
    stage.notes.append(f"clock of one JVM: {', '.join(JUMPS)}, then right again, {CLOCK_S:g} s each")


def reload(stage: Stage) -> None:
    """The same plan and archives again; over when the command is."""
    began = time.monotonic()
    done = stage.reload()
    if done.returncode == NO_SUCH_COMMAND and "invalid choice" in done.stderr:
        raise NotDoneError("this kit cannot reload yet")
    stage.notes.append(f"reload took {time.monotonic() - began:.1f} s, exit code {done.returncode}")
    if done.returncode:
        stage.problems.append(f"reload failed: {(done.stderr or done.stdout).strip()[-300:]}")


def reload_with_bad_archive(stage: Stage) -> None:
    """It must be refused, with words, and change nothing."""
    damage(stage)
    done = stage.reload()
    said = (done.stderr or done.stdout).strip()
    if done.returncode == NO_SUCH_COMMAND and "invalid choice" in done.stderr:
        raise NotDoneError("this kit cannot reload yet")
    stage.notes.append(f"reload: exit code {done.returncode}: {said[-200:]}")
    if not done.returncode:
        stage.problems.append("a reload with a damaged archive must be refused: got exit code 0")
    elif stage.archive.stem not in said:
        stage.problems.append(f"the refusal must name the archive: got {said[-200:]!r}")


def stop(stage: Stage) -> None:
    """What was accepted is answered first."""
    began = time.monotonic()
    done = stage.command("stop")
    stage.notes.append(f"stop took {time.monotonic() - began:.1f} s: {done.stdout.strip()[-200:]}")
    if done.returncode:
        stage.problems.append(f"stop failed: {(done.stderr or done.stdout).strip()[-300:]}")
