"""What is wrong with an instance, and what is to be done about it, by what was observed: pure.

TorchServe starts a worker that died again by itself, in 15 to 30 s; what it does not see (a worker or itself
stopped, a lost launcher, a hang) is ended here, so that it does. An instance is only replaced where
another one serves meanwhile, or where nothing else has helped: the proxy then asks its requests again.

A worker's main thread goes to sleep after each batch, until it gets the next one. So a thread that was not
seen to do so has finished nothing, and what it used of CPU time tells a hang that sleeps from one that spins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from server.processes import AT_WORK, Activity, Process

STILL_S = 30.0
"""TorchServe hands a free worker the next batch within milliseconds, so one that is sound uses its core."""
TURNS = 2
"""Idle workers wait in line for one lock (Model.pollBatch), so of as many smoke requests as there are workers
each gets one; twice as many leave no doubt."""
LATEST_LOOK_S = 30.0  # TorchServe is asked every 5 s, and waited for 5 s for each model
PATIENCE_SPARE_S = 15.0  # wrong answers or none, while another instance serves: two looks and more
PATIENCE_ALONE_S = 60.0
"""The same where nobody else serves; TorchServe's own restart of a worker takes 15-30 s."""
PATIENCE_PARTLY_S = 150.0
"""Fewer workers than planned: TorchServe's pauses between restarts grow to a minute and more."""


class Lack(str, Enum):
    """Kinds of what can be wrong with a model."""

    WORKERS = "workers"
    WRONG_ANSWER = "wrong answer"
    NO_ANSWER = "no answer"
    HANG = "hang"


class Ill(str, Enum):
    """Why nothing can be expected of a worker, or it must go."""

    HANGS = "hangs"
    STOPPED = "is stopped"
    LAUNCHER_LOST = "has lost its launcher"


class Kind(str, Enum):
    """Of a restart's cause, for the metrics."""

    ENDED = "ended"  # by itself, or by a signal
    HANG = "hang"
    STOPPED = "stopped"
    LAUNCHER_LOST = "launcher_lost"
    MEMORY = "memory"
    NO_WORKER = "no_worker"
    FEWER_WORKERS = "fewer_workers"
    WRONG_ANSWER = "wrong_answer"
    NO_ANSWER = "no_answer"
    START_FAILED = "start_failed"

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a model."""

    lack: Lack
    text: str


@dataclass(frozen=True, kw_only=True)
class Worker:
    """When a worker process was last seen to work."""

    last: Activity  # what it was like when its main thread was last seen to have slept or woken
    woke_at: float
    answered: int  # smoke requests the model had answered by then
    cpu_seconds: float
    computed_at: float  # when it had used CPU time, or no request waited for it
    waited_since: float  # since when requests wait without a break


def remember_worker(
    worker: Worker | None, seen: Activity, *, waiting: int, answered: int, now: float
) -> Worker:
    """After another look; `waiting` counts the queue, `answered` the smoke requests of the model that workers
    answered so far. One that was started again under the same pid begins anew."""
    if worker is None or worker.last.start_ticks != seen.start_ticks:
        times = dict.fromkeys(("woke_at", "computed_at", "waited_since"), now)
        return Worker(last=seen, answered=answered, cpu_seconds=seen.cpu_seconds, **times)
    if seen.switches != worker.last.switches:
        worker = replace(worker, last=seen, woke_at=now, answered=answered)
    if not waiting:
        worker = replace(worker, waited_since=now)
    if not waiting or seen.cpu_seconds - worker.cpu_seconds > AT_WORK * (now - worker.computed_at):
        worker = replace(worker, cpu_seconds=seen.cpu_seconds, computed_at=now)
    return worker


def explain_hang(
    worker: Worker, seen: Activity, *, workers: int, waiting: int, answered: int,
    batch_s: float, still_s: float = STILL_S, now: float,
) -> str:  # fmt: skip
    """Why one of a model's so many workers counts as hanging; empty where it does not. No batch takes longer
    than `batch_s`."""
    turns, asleep_s = answered - worker.answered, now - worker.woke_at
    is_asleep = seen.cpu_seconds - worker.last.cpu_seconds <= AT_WORK * asleep_s
    if seen.stopped:
        return "is stopped"
    if (still := now - worker.computed_at) >= still_s:
        return f"has used no CPU time for {still:.0f} s while {waiting} requests wait"
    if (busy := now - max(worker.woke_at, worker.waited_since)) > batch_s:
        return f"has finished nothing for {busy:.0f} s while {waiting} requests wait"
    if turns >= TURNS * workers and (asleep_s > batch_s or is_asleep):
        return f"has taken none of the last {turns} smoke requests"
    return ""


@dataclass(frozen=True, kw_only=True)
class ModelLook:
    """One model, as TorchServe described it last."""

    planned: int  # workers there are to be
    ready: tuple[int, ...] = ()  # process ids of those TorchServe calls ready
    hanging: tuple[int, ...] = ()  # those of them that run, and take no request or finish none
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One instance at one time: its processes now, and the last looks at its models."""

    looks: Mapping[str, ModelLook] = field(default_factory=dict)
    looked_at: float = 0.0  # seconds of the same clock as `now`
    java: str = ""  # what is wrong with TorchServe's own process; stopped by a signal its sockets stay open
    serving: Mapping[str, int] = field(default_factory=dict)
    """Model → workers that were ready at the last look, and still live and run."""
    workers: frozenset[int] = frozenset()
    ill: Mapping[int, Ill] = field(default_factory=dict)
    anonymous_mib: Mapping[int, int] = field(default_factory=dict)
    """Process → memory that is its own; what several map would be counted several times."""

    @property
    def problems(self) -> list[Problem]:
        """Of all models."""
        return [problem for look in self.looks.values() for problem in look.problems]

    @property
    def well(self) -> bool:
        """Whether all is as planned."""
        planned = {name: look.planned for name, look in self.looks.items()}
        return bool(self.looks) and not self.problems and not self.ill and self.serving == planned

    @property
    def lost(self) -> list[str]:
        """Models that no worker serves."""
        return sorted(name for name, count in self.serving.items() if not count and self.looks[name].planned)

    def describe(self) -> str:
        """What is wrong, or "ready"; empty before the first look."""
        wrong = {name: ", ".join(one.text for one in look.problems) for name, look in self.looks.items()}
        said = "; ".join(f"{name}: {text}" for name, text in wrong.items() if text)
        return said or ("ready" if self.looks else "")


def observe(
    processes: Sequence[Process], activities: Mapping[int, Activity], anonymous_mib: Mapping[int, int],
    looks: Mapping[str, ModelLook], looked_at: float, *, launched: bool,
) -> Observation:  # fmt: skip
    """Put together what was read; `launched`: each worker must have a launcher above it."""
    # Whether one is stopped is seen now: by a look of seconds ago nobody must end it.
    stopped = {pid for pid, activity in activities.items() if activity.stopped}
    launchers = {process.pid for process in processes if process.is_launcher}
    workers = {process.pid: process for process in processes if process.is_worker}
    java = {process.pid for process in processes if process.is_java}
    ill = {pid: Ill.HANGS for look in looks.values() for pid in look.hanging if pid in workers}
    ill |= {pid: Ill.STOPPED for pid in workers if pid in stopped}
    if launched:  # TorchServe cannot end a worker whose launcher is gone, and its pins are nobody's
        lost = [pid for pid, worker in workers.items() if worker.parent_pid not in launchers]
        ill |= dict.fromkeys(lost, Ill.LAUNCHER_LOST)
    serving = {
        name: sum(pid in workers and pid not in ill for pid in look.ready) for name, look in looks.items()
    }
    return Observation(
        looks=dict(looks), looked_at=looked_at, serving=serving, ill=ill, workers=frozenset(workers),
        anonymous_mib=anonymous_mib,
        java="is gone (killed?)" if not java else "is stopped (SIGSTOP)" if java & stopped else "",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Since when an instance is unwell, and a model of it lost; a new one where nobody could look."""

    unwell_since: float | None = None
    lost_since: float | None = None

    def after(self, seen: Observation, now: float) -> Memory:
        """Another observation; `now`: seconds of a clock that never jumps."""
        unwell, lost = (
            (now if before is None else before) if lasts else None
            for before, lasts in ((self.unwell_since, not seen.well), (self.lost_since, bool(seen.lost)))
        )
        return Memory(unwell_since=unwell, lost_since=lost)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do."""

    replace: str = ""  # why the instance is to be ended and started again; empty when it is not
    kind: Kind = Kind.ENDED
    """Of that."""
    end_workers: Mapping[int, tuple[Kind, str]] = field(default_factory=dict)
    """Processes to end, and why; TorchServe starts others."""


def judge(seen: Observation, memory: Memory, now: float, *, others: bool, memory_mib: int) -> Verdict:
    """`others`: another instance serves all its models; all its processes may hold `memory_mib` together."""
    lost_s = now - (now if memory.lost_since is None else memory.lost_since)
    unwell_s = now - (now if memory.unwell_since is None else memory.unwell_since)
    lacks = {problem.lack for problem in seen.problems}
    # A lack of workers mends itself; a wrong answer, or none, hardly.
    patience_s = PATIENCE_SPARE_S if others else PATIENCE_ALONE_S
    patience_s = PATIENCE_PARTLY_S if lacks <= {Lack.WORKERS} else patience_s
    if seen.java:
        return Verdict(
            replace=f"TorchServe {seen.java}", kind=Kind.STOPPED if "stopped" in seen.java else Kind.ENDED
        )
    if (unlooked_s := now - seen.looked_at) > LATEST_LOOK_S:
        return Verdict(replace=f"nobody has looked at it for {unlooked_s:.0f} s", kind=Kind.NO_ANSWER)
    if seen.lost and (others or lost_s > PATIENCE_ALONE_S):
        return Verdict(replace=f"{', '.join(seen.lost)}: no worker is left", kind=Kind.NO_WORKER)
    if unwell_s > patience_s:
        what = seen.describe() if lacks else "fewer workers serve than planned"
        kind = next((kind for lack, kind in _KINDS.items() if lack in lacks), Kind.FEWER_WORKERS)
        return Verdict(replace=f"{what}, for {unwell_s:.0f} s", kind=kind)
    ends, total = {}, sum(seen.anonymous_mib.values())
    if total > memory_mib:
        largest, held = max(seen.anonymous_mib.items(), key=lambda one: one[1])
        ends = {largest: (Kind.MEMORY, f"holds {held} MiB of {total}, and {memory_mib} are planned")}
    return Verdict(end_workers={**ends, **{pid: (_OF_ILL[ill], ill.value) for pid, ill in seen.ill.items()}})


_KINDS = {Lack.WRONG_ANSWER: Kind.WRONG_ANSWER, Lack.NO_ANSWER: Kind.NO_ANSWER, Lack.HANG: Kind.HANG}
_OF_ILL = {Ill.HANGS: Kind.HANG, Ill.STOPPED: Kind.STOPPED, Ill.LAUNCHER_LOST: Kind.LAUNCHER_LOST}
