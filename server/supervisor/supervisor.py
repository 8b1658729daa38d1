"""Owns a server: starts HAProxy and the instances, watches, restarts and ends them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from config.plan import Plan
from config.terminal import Report
from server.health import READY as HEALTHY
from server.notify import Notifier
from server.processes import DRAIN_SECONDS, find_marked_by_run
from server.rundir import RunDir
from server.start import Interrupted
from server.state import Failure, read_failure, write_state
from server.supervisor.door import Door, Serving
from server.supervisor.instance import Instance
from server.supervisor.moving import Moving
from server.supervisor.record import (
    DEGRADED,
    ENDED,
    FAILED,
    READY,
    STARTING,
    STOPPING,
    Record,
    tell_time,
    write_record,
)
from server.supervisor.telling import Telling

LOOK_S = 0.5
"""Of the door, and of what waits in it."""
PROCESSES_S = 1.0
"""Of all processes of the instances: 7 ms of CPU on a machine with 130, which the workers then lack."""
GAP_S = 5.0
"""Between the begins of two turns: then all of the server was stopped for a while, as a measurement does with
those that wait for their turn, or the machine slept. A turn in which the door does not answer takes 3 s."""
GRACE_S = 12.0
"""After that, until the others run again too and each keeper has looked anew: one that ran again before its
workers did has seen them stopped."""
KEEPERS_END_S = 8.0
"""Sockets, workers and launchers: 2-3 s seen. With the time to drain it is less than a stop waits."""
STALE_S = 10.0
"""The loop's turn takes well under a second; after this it is not alive any more."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What /ready and /live answer from, and what the record says."""

    phase: str
    models: Mapping[str, tuple[int, int]]
    """Model → workers that serve, workers planned."""
    at: float
    """time.monotonic() of the look."""

    @property
    def ready(self) -> bool:
        """Whether each model has somebody who serves it."""
        serving = all(count for count, _ in self.models.values())
        return self.phase in (READY, DEGRADED) and serving

    def describe(self, *, door: bool) -> str:
        """For a health check: as /ready says, where the door is there to say it; else why not."""
        if self.ready and door:
            return HEALTHY
        lost = [f"{name}: no worker serves" for name, (count, _) in self.models.items() if not count]
        return f"not ready: {'; '.join([self.phase, *([] if door else ['no door']), *lost])}"

    def is_live(self, now: float) -> bool:
        """Whether the supervisor still looks."""
        return now - self.at < STALE_S


class Supervisor:
    """The loop; `run` stays in it until a signal asks for the end or the start fails."""

    def __init__(
        self, run: RunDir, plan: Plan, door: Door, instances: Sequence[Instance], report: Report
    ) -> None:
        self.run_dir = run
        self.plan = plan
        self.door = door
        self.instances = {instance.name: instance for instance in instances}
        self._report = report
        self._notifier = Notifier()
        self._telling = Telling(run.health, report)
        self._asked = threading.Event()
        self._turned_at = time.monotonic()
        self._lenient_until = 0.0
        self._looked = float("-inf")
        self._moving: Moving | None = None
        self._record = Record(pid=os.getpid(), phase=STARTING, since=tell_time())
        self._written: Record | None = None
        self._unwritten = False
        self._troubled = ""
        self.standing = self._stand(STARTING)

    def run(self) -> int:
        """0 ended in order, 1 the start failed."""
        try:
            while self._record.phase != FAILED:
                self._turn_safely()
                self.door.wait_for_end(LOOK_S)
            self._end(0.0)
            return 1
        except Interrupted as signalled:
            self._report(f"{signalled}: stopping; accepted requests are answered first")
            self._note(STOPPING)
            self._end(DRAIN_SECONDS)
            self._note(ENDED)
            return 0

    def _turn_safely(self) -> None:
        """What nobody foresaw must not end who watches over the others; /live says that it does not go on."""
        try:
            self._turn()
            self._troubled = ""
        except Exception as problem:  # of whatever kind
            said = f"{type(problem).__name__}: {problem}"
            if said != self._troubled:
                self._report(f"the supervisor cannot look: {said}")
            self._troubled = said

    def _turn(self) -> None:
        """One look at everything, and what follows from it; all of it goes by the time at its begin, since
        it can be stopped in the midst of it, too."""
        now = time.monotonic()
        if now - self._turned_at > GAP_S:
            self._lenient_until = now + GRACE_S
        self._turned_at = now
        self.door.look(now)
        if now < self._lenient_until:
            for instance in self.instances.values():
                instance.forgive()
        elif now - self._looked > PROCESSES_S - LOOK_S / 2:
            fresh, self._looked = self._looked >= self._lenient_until, now  # anybody seen since a pause?
            marked = find_marked_by_run([instance.run.path for instance in self.instances.values()])
            for instance in list(self.instances.values()):
                instance.look(marked[instance.run.path], now, others=fresh and self._others_serve(instance))
        self._move()
        self.door.apply(self._count_serving())
        for instance in self.instances.values():
            instance.act()
        if self._record.phase == STARTING and (failed := self._find_failed_start()):
            self._fail(*failed)
        else:
            self._note(self._find_phase())

    def ask_reload(self) -> str:
        """From any thread: move to what is planned in run/next; why not, or nothing."""
        if self._record.phase not in (READY, DEGRADED):
            return f"the server is {self._record.phase}"
        if self._moving or self._asked.is_set():
            return "a reload is under way"
        self._asked.set()
        return ""

    def _move(self) -> None:
        """One step of a reload, where one is under way."""
        if self._asked.is_set() and not self._moving:
            self._moving = Moving(self.run_dir, self.plan, self.door, self.instances, self._report)
            self._asked.clear()
        if not self._moving:
            return
        done = self._moving.step()
        ended = self._record.reloads + self._moving.ended
        self._record = replace(self._record, reload=done, reloads=ended)
        if self._moving.ended:
            self.plan = self._moving.plan
            self._moving = None

    def _others_serve(self, instance: Instance) -> bool:
        """Whether each of its models is served by another one now."""
        others = [other for other in self.instances.values() if other is not instance]
        return all(any(other.serving.get(model) for other in others) for model in instance.plan.models)

    def _count_serving(self) -> dict[tuple[str, str], Serving]:
        """By (model, instance)."""
        return {
            (model, name): instance.describe_serving(model)
            for name, instance in self.instances.items()
            for model in instance.plan.models
        }

    def _find_phase(self) -> str:
        starting = self._record.phase == STARTING
        # Those of a reload count once they serve, and those that it retires no more.
        counted = [one for one in self.instances.values() if starting or (one.was_ready and not one.retired)]
        if self.door.ready and counted and all(one.ready for one in counted):
            return READY
        return STARTING if starting else DEGRADED

    def _find_failed_start(self) -> tuple[str, Failure] | None:
        """A part that ended before it was ever ready: what made it fail does so again."""
        if cause := _find_early_end(self.door):
            return "door", Failure(cause=cause)
        for name, instance in self.instances.items():
            if cause := _find_early_end(instance):
                return name, read_failure(instance.run.failure) or Failure(cause=cause)
        return None

    def _fail(self, name: str, failure: Failure) -> None:
        with contextlib.suppress(OSError):
            write_state(self.run_dir.failure, failure)
        self._report(f"start failed: {name}: {failure.describe()}")
        self._note(FAILED, message=f"{name}: {failure.describe()}")

    def _note(self, phase: str, *, message: str = "") -> None:
        """Keep the record, tell systemd, and say when the phase changes."""
        self._notifier.tell("reloading" if self._moving else phase, message)
        changed = phase != self._record.phase
        if changed and self._record.phase != STARTING:
            self._report(f"the server is {phase}")
        record = replace(
            self._record,
            phase=phase,
            since=tell_time() if changed else self._record.since,
            door=self.door.describe(),
            instances={name: instance.describe() for name, instance in self.instances.items()},
            message=message,
        )
        self.standing = self._stand(phase)
        self._telling.tell(self.standing.describe(door=self.door.ready))
        self._record = record
        self._write()

    def _write(self) -> None:
        """Where it says something new."""
        if self._record != self._written:
            try:
                write_record(self.run_dir.record, self._record)
            except OSError as problem:  # a full disk: it is written once there is room
                if not self._unwritten:
                    self._report(f"supervisor.json cannot be written: {problem}")
                self._unwritten = True
                return
            self._written, self._unwritten = self._record, False

    def _stand(self, phase: str) -> Standing:
        models = {
            name: (
                sum(instance.serving.get(name, 0) for instance in self.instances.values()),
                int(model.workers.value),
            )
            for name, model in self.plan.models.items()
        }
        return Standing(phase=phase, models=models, at=time.monotonic())

    def _end(self, drain_s: float) -> None:
        """Nothing new, then what was accepted, then the instances, and the door last: it still answers."""
        self.door.drain(drain_s)
        for instance in self.instances.values():
            instance.ask_to_end()
        deadline = time.monotonic() + KEEPERS_END_S
        while time.monotonic() < deadline and not all(one.has_ended() for one in self.instances.values()):
            time.sleep(LOOK_S / 5)
        left = [instance for instance in self.instances.values() if not instance.has_ended()]
        if left:
            with ThreadPoolExecutor(len(left)) as pool:
                list(pool.map(lambda one: one.kill(), left))
        self.door.end()


def _find_early_end(part: Door | Instance) -> str:
    """Why it ended before it was ever ready; empty where it did not."""
    described = part.describe()
    return "" if part.was_ready or not described.restarts else described.causes[-1].cause
