"""The faults, in the order in which they are done: a name, what it is, and what is promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.errors import LoadTestError
from loadtest.experiments.chaos import crowds, processes, surroundings
from loadtest.experiments.chaos.row import NOTHING, Promise
from loadtest.experiments.chaos.stage import HAPROXY, NONE, Stage

DEADLINE_MS = 10_000
"""With one of two instances gone, 60 % of the peak meets half of it: after 30 s the last waits 6 s."""
OVERLOAD_DEADLINE_MS = 1_000
SHARE = 0.6
RELOAD_SHARE = 0.8
OVERLOAD_SHARE = 1.5
GOODPUT = 0.9
NO_FAILURE = Promise(failed=0)
ANSWERED = Promise()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong, or is asked for, under load."""

    name: str
    title: str
    do: Callable[[Stage], None]
    promise: Promise = ANSWERED
    prepare: Callable[[Stage], None] | None = None
    """Before the load; NotDoneError where this machine cannot do the fault."""
    share: float = SHARE
    """Of the peak."""
    deadline_ms: int = DEADLINE_MS
    front: str = HAPROXY
    until_fault: bool = False
    """Only what was sent before it counts."""
    needs_volume: bool = False
    needs_clock: bool = False


# What matters most comes first, should time run out; `clock` leaves a JVM behind whose clock could be set,
# which `jvm-kill` ends.
FAULTS = (
    Fault(
        name="overload",
        title=f"{OVERLOAD_SHARE:g} × the peak for {crowds.OVERLOAD_S:g} s, deadlines of a second",
        do=crowds.go_on,
        promise=Promise(goodput=GOODPUT),
        share=OVERLOAD_SHARE,
        deadline_ms=OVERLOAD_DEADLINE_MS,
    ),
    Fault(name="worker-kill", title="SIGKILL to a worker", do=processes.kill_worker, promise=NO_FAILURE),
    Fault(name="jvm-stop", title="SIGSTOP to a JVM", do=processes.halt_java),
    Fault(
        name="clock",
        title="the clock of a JVM jumps two hours forth and back",
        do=surroundings.set_clock,
        prepare=surroundings.take_clock,
        needs_clock=True,
    ),
    Fault(name="jvm-kill", title="SIGKILL to a JVM", do=processes.kill_java, promise=NO_FAILURE),
    Fault(
        name="door-kill",
        title="SIGKILL to the door: what is open is cut",
        do=processes.kill_door,
        promise=Promise(open_cut=True),
    ),
    Fault(
        name="reload",
        title=f"make reload at {RELOAD_SHARE:.0%} of the peak",
        do=surroundings.reload,
        promise=Promise(failed=0, slow_s=10),
        share=RELOAD_SHARE,
    ),
    Fault(
        name="reload-bad",
        title="make reload with a damaged archive",
        do=surroundings.reload_with_bad_archive,
        promise=NO_FAILURE,
    ),
    Fault(name="worker-stop", title="SIGSTOP to a worker", do=processes.halt_worker),
    Fault(name="launcher-kill", title="SIGKILL to a launcher", do=processes.kill_launcher),
    Fault(name="worker-memory", title="a worker runs out of memory", do=processes.use_up_memory),
    Fault(
        name="crash-loop",
        title=f"all workers killed again and again for {processes.LOOP_S:g} s",
        do=processes.kill_all_workers_again_and_again,
    ),
    Fault(
        name="archive",
        title="the archive damaged while serving, then SIGKILL to a worker",
        do=surroundings.damage_archive,
    ),
    Fault(
        name="disk-full",
        title=f"no room in the run directory for {surroundings.DISK_S:g} s, and SIGKILL to a worker",
        do=surroundings.fill_disk,
        prepare=surroundings.need_volume,
        needs_volume=True,
    ),
    Fault(
        name="idle",
        title=f"{crowds.IDLE:,} connections without a word",
        do=crowds.hold_idle_connections,
    ),
    Fault(
        name="slow-bodies",
        title=f"{crowds.SLOW} bodies that come a byte at a time",
        do=crowds.send_slow_bodies,
    ),
    Fault(
        name="stop",
        title="make stop: what was sent before",
        do=surroundings.stop,
        promise=Promise(failed=0, full_s=None, verified=False),
        until_fault=True,
    ),
    Fault(
        name="overload",
        title="the same against TorchServe's own queue",
        do=crowds.go_on,
        promise=NOTHING,
        share=OVERLOAD_SHARE,
        deadline_ms=OVERLOAD_DEADLINE_MS,
        front=NONE,
    ),
)


def list_names() -> list[str]:
    """Each once."""
    return list(dict.fromkeys(fault.name for fault in FAULTS))


def choose(names: Sequence[str]) -> list[Fault]:
    """Those that are named, in the registry's order, or all; LoadTestError says which there are."""
    known = list_names()
    for name in names:
        if name not in known:
            raise LoadTestError(f"EXPERIMENT must be one of {', '.join(known)}: got {name}")
    return [fault for fault in FAULTS if not names or fault.name in names]
