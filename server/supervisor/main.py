"""The supervisor: one process that starts HAProxy and the instances, watches, restarts and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from config.plan import Plan, read_plan
from config.terminal import Report, render_entry, say
from server.launch import PRIVATE_UMASK, confine, list_server_cpus
from server.logs import limit_log
from server.notify import Notifier
from server.processes import DRAIN_SECONDS, open_handle, reap_orphans
from server.rundir import RunDir
from server.start import find_signals
from server.state import Failure, Phase, Record, tell_time, write_state
from server.supervisor import protocols
from server.supervisor.counters import RELOADS
from server.supervisor.instance import Instance
from server.supervisor.metrics import Page
from server.supervisor.probes import Readiness, answer_probes
from server.supervisor.proxy import Proxy
from server.supervisor.reload import DONE, Reload
from server.supervisor.requests import RequestLog

TURN_S = 0.5  # of HAProxy, and of what waits in it
PROCESSES_S = 1.0  # of all processes of the instances
GAP_S = 5.0
"""Between the begins of two turns: then all of the server was stopped for a while, as a measurement does with
those that wait for their turn, or the machine slept. A turn in which HAProxy does not answer takes 3 s."""
GRACE_S = 12.0
"""After that, until the others run again too and TorchServe was asked anew: a supervisor that ran again
before its workers did has seen them stopped."""
INSTANCES_END_S = 8.0
"""Sockets, workers and launchers: 2-3 s seen. With the time to drain it is less than a stop waits."""
THREADS = 4  # for what waits: archives are read, and an instance is verified, in one
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER (prctl(2))


def supervise(run: RunDir) -> int:
    """For a run directory that is prepared: 0 when a signal has ended it, 1 where its start failed."""
    os.umask(PRIVATE_UMASK)
    plan = read_plan(run.plan)

    def report(message: str) -> None:
        say(render_entry(plan.log, message, level="INFO", source="supervisor"))

    confine(list_server_cpus(plan))
    # A worker whose launcher was killed, a launcher whose Java was: they stay below us.
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)

    async def go() -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        instances = [Instance(name, plan, run, report) for name in plan.instances]
        server = Server(run, plan, Proxy(run, plan, report), instances, report)
        path = Path(run.proxy_files.supervisor_socket)
        page = server.page.render

        def ask(what: str) -> protocols.Answer | None:
            return protocols.answer(what.partition("?")[0], server.plan, server.readiness)

        async with answer_probes(path, lambda: server.readiness, server.ask_reload, page, ask):
            return await server.run()

    return asyncio.run(go())


class Server:
    """The loop; `run` stays in it until a signal asks for the end or the start fails."""

    def __init__(self, run: RunDir, plan: Plan, proxy: Proxy, instances: list[Instance],
                 report: Report) -> None:  # fmt: skip
        self.run_dir, self.plan, self.proxy, self._report = run, plan, proxy, report
        self.instances = {instance.name: instance for instance in instances}
        self._notifier = Notifier()
        self._reload: Reload | None = None
        self._turned_at, self._lenient_until, self._looked_at = time.monotonic(), 0.0, float("-inf")
        self._handles: dict[int, int] = {}  # pid → pidfd
        self._woken = asyncio.Event()
        self._record = Record(pid=os.getpid(), phase=Phase.STARTING, since=tell_time())
        self._written: Record | None = None
        self._troubles: set[str] = set()
        self.readiness = self._find_readiness(Phase.STARTING)
        self.page = Page(self)
        self._requests = RequestLog(run.request_log, plan.log, report)

    async def run(self) -> int:
        """0 ended in order, 1 the start failed."""
        loop = asyncio.get_running_loop()
        signalled = loop.create_future()

        def note(name: str) -> None:
            if not signalled.done():  # a second one must not cut the end short
                signalled.set_result(name)

        for number in find_signals():
            loop.add_signal_handler(number, note, number.name)
        turns = asyncio.ensure_future(self._turn_on())
        await asyncio.wait({turns, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            await self._end(0.0)
            return 1
        turns.cancel()
        await asyncio.wait({turns})
        self._report(f"{signalled.result()}: stopping; accepted requests are answered first")
        self._note(Phase.STOPPING)
        await self._end(DRAIN_SECONDS)
        self._note(Phase.ENDED)
        return 0

    async def _turn_on(self) -> None:
        """Until the start has failed; what nobody foresaw must not end who watches over the others."""
        while self._record.phase != Phase.FAILED:
            with self._saying_once("the supervisor cannot look", Exception):
                self.turn()
            await self._wait(TURN_S)

    @contextlib.contextmanager
    def _saying_once(self, what: str, kind: type[Exception]) -> Iterator[None]:
        """A problem is reported, and again only after it went well in between; then it goes on."""
        try:
            yield
            self._troubles.discard(what)
        except kind as problem:
            if what not in self._troubles:
                self._report(f"{what}: {type(problem).__name__}: {problem}")
            self._troubles.add(what)

    async def _wait(self, seconds: float) -> None:
        """For so long, or until HAProxy or a TorchServe ends: nobody waits longer than need be."""
        lenient = self._turned_at < self._lenient_until
        watched = [] if lenient else [one.watched for one in self.instances.values()]
        pids = {one.pid for one in (self.proxy.process, *watched) if one}
        loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        for pid in self._handles.keys() ^ pids:
            if handle := self._handles.pop(pid, None):
                loop.remove_reader(handle)
                os.close(handle)
                continue
            with contextlib.suppress(ProcessLookupError):
                if handle := open_handle(pid):
                    self._handles[pid] = handle
                    loop.add_reader(handle, lambda: self._woken.set())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    def turn(self) -> None:
        """One look at everything, and what follows from it; all of it goes by the time at its begin, since
        it can be stopped in the midst of it, too."""
        now = time.monotonic()
        if now - self._turned_at > GAP_S:
            self._lenient_until = now + GRACE_S
        self._turned_at, ready = now, self.proxy.ready
        self.proxy.look(now)
        self._count_requests()
        news = bool(self._reload or self.proxy.ready != ready)
        if now < self._lenient_until:
            news = True
            for instance in self.instances.values():
                instance.forgive()
        elif self._woken.is_set() or now - self._looked_at > PROCESSES_S - TURN_S / 2:
            news, fresh, self._looked_at = True, self._looked_at >= self._lenient_until, now  # since a pause
            for instance in list(self.instances.values()):
                instance.look(now, others=fresh and self._others_serve(instance))
            ours = (self.proxy.process, *(one.process for one in self.instances.values()))
            reap_orphans([one.pid for one in ours if one])
            for log in self._list_logs():
                limit_log(log)
        if news:
            self._act()

    def _count_requests(self) -> None:
        with self._saying_once("requests.log cannot be written", OSError):
            self.page.count(self._requests.take(self.proxy.requests.read_lines()))

    def _list_logs(self) -> Iterator[Path]:
        """That grow with each line (log4j limits its own): what clients can fill must not fill the disk."""
        yield from (self.run_dir.supervisor_log, self.run_dir.request_log, self.run_dir.proxy_log)
        yield from (self.run_dir.instance(name).console_log for name in self.instances)

    def find_verified(self) -> dict[str, bool]:
        """Row of verify → whether it passed: at the instances' starts, and by `make verify` after them."""
        found: dict[str, bool] = {}
        for instance in self.instances.values():
            for item, passed in instance.verified.items():
                found[item] = passed and found.get(item, True)
        with contextlib.suppress(OSError, ValueError, LookupError):
            said = json.loads(self.run_dir.verified.read_bytes())
            if said["at"] > max((one.verified_at for one in self.instances.values()), default=""):
                found |= said["items"]
        return found

    def _act(self) -> None:
        if reload := self._reload:
            done = reload.step()
            self._record = replace(self._record, reload=done, reloads=self._record.reloads + reload.ended)
            if reload.ended:
                self.plan, self._reload = reload.plan, None
                RELOADS.labels("done" if done == DONE else "failed").inc()
                self.page.follow_plan()
        serving = {
            (model, name): instance.describe_serving(model)
            for name, instance in self.instances.items()
            for model in instance.own.models
        }
        self.proxy.apply(serving)
        for instance in self.instances.values():
            instance.act()
        if message := self._find_failed_start() if self._record.phase == Phase.STARTING else "":
            self._report(f"start failed: {message}")
            self._note(Phase.FAILED, message=message)
        else:
            self._note(self._find_phase())

    def ask_reload(self) -> str:
        """Move to what is planned in run/next; why not, or nothing."""
        if self._record.phase not in (Phase.READY, Phase.DEGRADED):
            return f"the server is {self._record.phase}"
        if self._reload:
            return "a reload is under way"
        self._reload = Reload(self.run_dir, self.plan, self.proxy, self.instances, self._report)
        return ""

    def _others_serve(self, instance: Instance) -> bool:
        """Whether each of its models is served by another one now."""
        others = [other for other in self.instances.values() if other is not instance]
        return all(any(other.serving.get(model) for other in others) for model in instance.own.models)

    def _find_phase(self) -> Phase:
        starting = self._record.phase == Phase.STARTING
        # Those of a reload count once they serve, and those that it retires no more.
        counted = [one for one in self.instances.values() if starting or (one.was_ready and not one.retired)]
        if self.proxy.ready and counted and all(one.ready for one in counted):
            return Phase.READY
        return Phase.STARTING if starting else Phase.DEGRADED

    def _find_failed_start(self) -> str:
        """A part that ended before it was ever ready: what made it fail does so again."""
        parts: list[tuple[str, Proxy | Instance, Failure | None]] = [("proxy", self.proxy, None)]
        parts += [(name, one, one.failure) for name, one in self.instances.items()]
        for name, part, failure in parts:
            if not part.was_ready and (causes := part.describe().causes):
                failure = failure or Failure(cause=causes[-1].cause)
                with contextlib.suppress(OSError):
                    write_state(self.run_dir.failure, failure)
                return f"{name}: {failure.describe()}"
        return ""

    def _note(self, phase: Phase, *, message: str = "") -> None:
        """Write the record, tell systemd, and say when the phase changes."""
        self._notifier.tell("reloading" if self._reload else phase, message)
        changed = phase != self._record.phase
        if changed and self._record.phase != Phase.STARTING:
            self._report(f"the server is {phase}")
        self._record = replace(
            self._record, phase=phase, since=tell_time() if changed else self._record.since, message=message,
            instances={name: one.describe() for name, one in self.instances.items()},
            proxy=self.proxy.describe(),
        )  # fmt: skip
        self.readiness = self._find_readiness(phase)
        if self._record != self._written:
            # On a full disk it is written once there is room.
            with self._saying_once("supervisor.json cannot be written", OSError):
                write_state(self.run_dir.record, self._record)
                self._written = self._record

    def _find_readiness(self, phase: Phase) -> Readiness:
        instances = self.instances.values()
        models = {
            name: (sum(one.serving.get(name, 0) for one in instances), self.plan.count_workers(name))
            for name in self.plan.models
        }
        return Readiness(phase=phase, models=models, at=time.monotonic())

    async def _end(self, drain_s: float) -> None:
        """Nothing new, then what was accepted, then the instances, and HAProxy last: it still answers."""
        await asyncio.to_thread(self.proxy.drain, drain_s)
        self._count_requests()
        await asyncio.gather(*(one.end(INSTANCES_END_S) for one in self.instances.values()))
        await asyncio.to_thread(self.proxy.end)
