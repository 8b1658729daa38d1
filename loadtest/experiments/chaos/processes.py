"""Faults of processes: killed, stopped, out of memory, killed again and again."""

from __future__ import annotations

import signal
import time

from loadtest.experiments.chaos.memory import count_kills, find_own_group, move, small_group
from loadtest.experiments.chaos.stage import MODEL, Stage
from loadtest.experiments.chaos.watched import is_gone, take_first
from loadtest.experiments.harm import bodies
from loadtest.experiments.harm.client import Request, send_all
from server.processes import Process, send_signal

LOOP_S, LOOP_STEP_S = 20.0, 0.2
EAT_S = 20.0
"""For the picture that is too large to come to the worker that has no room for it."""
LARGEST_SIDE = 4898
"""24 megapixels, the most that is decoded; with transparency four bytes each, and several copies."""


def kill_worker(stage: Stage) -> None:
    stage.kill(take_first("worker", stage.watched.list_workers()))


def halt_worker(stage: Stage) -> None:
    stage.halt(take_first("worker", stage.watched.list_workers()))


def kill_launcher(stage: Stage) -> None:
    stage.kill(take_first("launcher", stage.watched.list_launchers()))


def kill_java(stage: Stage) -> None:
    stage.kill(take_first("TorchServe", stage.watched.list_java()))


def halt_java(stage: Stage) -> None:
    stage.halt(take_first("TorchServe", stage.watched.list_java()))


def kill_door(stage: Stage) -> None:
    for process in stage.watched.list_doors() or [take_first("door", [])]:
        stage.kill(process)


def kill_all_workers_again_and_again(stage: Stage) -> None:
    """Each that comes up, as soon as it is there: none ever loads."""
    killed, deadline = set[int](), time.monotonic() + LOOP_S
    while time.monotonic() < deadline:
        for process in stage.watched.list_workers():
            send_signal(process, signal.SIGKILL)
            killed.add(process.pid)
        time.sleep(LOOP_STEP_S)
    stage.notes.append(f"SIGKILL to {len(killed)} workers in {LOOP_S:g} s")


def use_up_memory(stage: Stage) -> None:
    """In a control group of its own; where none can be made, a plain SIGKILL stands in, and says so."""
    worker = take_first("worker", stage.watched.list_workers())
    with small_group(find_own_group()) as group:
        if group is None:
            stage.kill(worker)
            stage.notes.append(
                "stand-in: no memory cgroup can be made here, so the worker got the SIGKILL that the kernel "
                "would send; no memory ran out"
            )
            return
        move(worker.pid, group)
        ended = feed(stage, worker)
        kills = count_kills(group)
        stage.notes.append(f"memory cgroup: {kills} processes ended by the kernel, worker {worker.pid}")
        if not (ended and kills):
            stage.problems.append(
                f"worker {worker.pid} was not ended for its memory: the fault did not happen"
            )


def feed(stage: Stage, worker: Process) -> bool:
    """Pictures that need more than there is, until it has ended; whether it has."""
    picture = bodies.make_plain_png(LARGEST_SIDE, mode="RGBA")
    path, token = f"/predictions/{MODEL}", stage.target.token
    request = Request(path=path, body=picture, content_type=bodies.PNG, token=token)
    deadline = time.monotonic() + EAT_S
    while not is_gone(worker) and time.monotonic() < deadline:
        send_all([request] * 2, stage.port, clients=2, seconds=5.0)
    return is_gone(worker)
