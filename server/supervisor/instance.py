"""One TorchServe behind HAProxy: started, verified, watched, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from config.plan import Plan
from config.terminal import Report
from server.archives import check_packed, check_precisions, read_archives
from server.errors import ServerError
from server.launch import check_machine, find_metrics_folder, launch, make_allocator_link, prepare_folders
from server.logs import explain_death, find_start_failure, read_configuration, read_oom_kills
from server.ports import check_ports_free, list_ports
from server.processes import PROC, Process, find_marked, is_alive, read_process, send_signal
from server.ready import StartFailed, wait_until_ready
from server.rundir import RunDir
from server.state import Failure, Part, Phase, begin_state, tell_time, write_state
from server.stop import remove_traces
from server.supervisor.counters import RESTARTS
from server.supervisor.judge import Kind, Memory, Observation, judge
from server.supervisor.observe import Watch, count_planned
from server.supervisor.proxy import Serving
from server.supervisor.restarts import Restarts
from server.throttling import read_throttled

if TYPE_CHECKING:
    from handlers.definition import Packed

KILLED_WITHIN_S = 5.0
TERMINATED_WITHIN_S = 2.0  # launchers and workers once Java has ended: they leave by themselves
POLL_S = 0.1
GENTLE = 19
"""Nice value of an instance that a reload loads: without it, requests fail at 80 % of the capacity."""
UNLIMITED = 20  # RLIMIT_NICE with which a process may go back to 0


def may_be_gentle() -> bool:
    """Whether what is made less urgent can be made urgent again: root's right, or a limit's."""
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= UNLIMITED


def set_nice(pids: Iterable[int], nice: int) -> None:
    """Of all their threads; and of the sessions they lead, where the kernel groups processes by these
    (sched(7), autogroup). Those that have ended are passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in (PROC / str(pid) / "task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid:
                (PROC / str(pid) / "autogroup").write_text(str(nice))


class Instance:
    """`look` and `act` are called in each turn of the supervisor; what takes longer goes on meanwhile."""

    def __init__(self, name: str, plan: Plan, server_run: RunDir, report: Report) -> None:
        """`server_run`: the run directory of the server."""
        self.name = name
        self.plan = dataclasses.replace(plan, instances={name: plan.instances[name]})
        self.own = plan.instances[name]
        self.run = server_run.instance(name)
        self.restarts = Restarts(name, report)
        self.seen = Observation()
        self.failure: Failure | None = None  # of the last start, where it failed
        self.was_ready = False  # since the supervisor began: until then a failure is one of the start
        self.retired = False  # another one takes its place: it answers what it has, and is asked nothing more
        self.gentle = False  # its load takes what those leave that serve
        self._server_run, self._report = server_run, report
        self.process: subprocess.Popen[bytes] | None = None  # the `torchserve` command
        self._watch: Watch | None = None
        self._memory = Memory()
        self._doomed, self._kind = "", Kind.ENDED  # why it is to be replaced, once the proxy knows
        self._ended: dict[int, Kind] = {}  # workers that were ended here
        self.verified: Mapping[str, bool] = {}
        """Row of verify → whether it passed everywhere, at the last start."""
        self.verified_at = ""
        self._starting: asyncio.Task[Failure | None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def watched(self) -> subprocess.Popen[bytes] | None:
        """The process where `look` would see that it has ended."""
        return self.process if self._watch and not self.retired and not self._killing else None

    @property
    def serving(self) -> Mapping[str, int]:
        """Model → workers that can be asked now."""
        return {} if self.retired or self._doomed else self.seen.serving

    @property
    def ready(self) -> bool:
        """Whether every worker serves."""
        return self.seen.well and not self._doomed

    def describe_serving(self, model: str) -> Serving:
        """For the proxy."""
        own = self.own.models[model]
        return Serving(self.serving.get(model, 0), count_planned(own), own.maxconn, own.large_maxconn)

    def look(self, now: float, *, others: bool) -> None:
        """Start it where that is due, see how it is and end workers that are ill; `act` does the rest.

        `now`: when this turn began; `others`: another instance serves its models.
        """
        if self.retired or self._killing:  # its end is under way
            return
        if self._starting:
            self._look_at_start(self._starting)
        elif self.process is None:
            if self.restarts.due:
                self.restarts.note_start()
                self._starting = asyncio.ensure_future(self._start())
        elif self.process.poll() is not None:
            self._doomed, self._kind = explain_death(self.run).describe(), Kind.ENDED
        elif self._watch:
            self._judge(self._watch, now, others=others)

    def _look_at_start(self, starting: asyncio.Task[Failure | None]) -> None:
        if self.gentle and self.process and may_be_gentle():
            set_nice((one.pid for one in find_marked(self.run.path)), 0 if starting.done() else GENTLE)
        if not starting.done():
            return
        self._starting = None
        self.failure = starting.result()
        if self.failure:
            self.restarts.note_end(self.failure.describe(), Kind.START_FAILED)
        elif self._watch:
            self.was_ready, self.gentle = True, False
            self.seen = self._watch.observe(time.monotonic())
            self._watching = asyncio.ensure_future(self._watch.run())

    def _judge(self, watch: Watch, now: float, *, others: bool) -> None:
        before, self.seen = self.seen, watch.observe(now)
        if bool(before.problems) != bool(self.seen.problems):
            self._report(f"{self.name}: {self.seen.describe()}")
        self._memory = self._memory.after(self.seen, now)
        verdict = judge(self.seen, self._memory, now, others=others, memory_mib=self.own.memory_mib)
        self._doomed, self._kind = verdict.replace, verdict.kind
        for pid in before.workers - self.seen.workers:
            RESTARTS.labels("worker", self._ended.pop(pid, Kind.ENDED).value).inc()
        for pid, (kind, why) in verdict.end_workers.items():
            if process := read_process(pid):
                self._report(f"{self.name}: {process.role} {pid} {why}: ended, TorchServe starts another one")
                self._ended[pid] = kind
                send_signal(process, signal.SIGKILL)

    def act(self) -> None:
        """End all of it at once and start it again, where `look` found that it must be.

        After the proxy knows: it then asks another instance what was not answered, and never this one, which
        for a moment has the fewest requests in hand.
        """
        if self._doomed and not self.retired and not self._killing:
            self._killing = asyncio.ensure_future(self._replace(self._doomed))

    async def _replace(self, why: str) -> None:
        try:
            await self.kill()
        finally:
            self._killing = None
            self.restarts.note_end(why, self._kind)

    def forgive(self) -> None:
        """What was wrong so far is no reason: we did not look, and nobody else may have been able to."""
        self._memory = Memory()
        if self._watch:
            self._watch.looked_at = time.monotonic()

    def describe(self) -> Part:
        """For the record."""
        pid, phase = self.process.pid if self.process else None, Phase.READY if self.ready else Phase.UNWELL
        looked = phase if self.seen.looks else None
        return self.restarts.describe(pid, looked, self.seen.describe(), self.serving)

    async def _start(self) -> Failure | None:
        """Why it failed, with nothing of it left; None when it is ready and verified."""
        try:
            await self._bring_up()
            return None
        except StartFailed as problem:
            failure = problem.failure
        except Exception as problem:  # of whatever kind, such as a full disk: it is tried again later
            named = isinstance(problem, ServerError)
            failure = Failure(cause=str(problem) if named else f"{type(problem).__name__}: {problem}")
        lines = [f"start failed: {failure.describe()}", *(f"  | {line}" for line in failure.lines)]
        self._report("\n".join(f"{self.name}: {line}" for line in lines))
        with contextlib.suppress(OSError):
            write_state(self.run.failure, failure)
        await self.kill()
        return failure

    async def _bring_up(self) -> None:
        await self.kill()  # what an earlier supervisor has left
        archives = await asyncio.to_thread(self._prepare)
        state = begin_state(self.plan, archives, self.run.properties)
        state = dataclasses.replace(state, throttled_at_start=read_throttled())
        write_state(self.run.state, state)
        began, kills = time.monotonic(), read_oom_kills()
        self.process = process = launch(self.plan, self.name, self.run)
        await wait_until_ready(
            self.own, archives, report=lambda line: self._report(f"{self.name}: {line}"),
            find_failure=lambda: find_start_failure(self.run, kills),
            find_death=lambda: None if process.poll() is None else explain_death(self.run),
        )  # fmt: skip
        write_state(self.run.state, dataclasses.replace(
            state, phase=Phase.READY, configuration=read_configuration(self.run.server_log),
            seconds_to_ready=round(time.monotonic() - began, 1), throttled_when_ready=read_throttled(),
        ))  # fmt: skip
        await asyncio.to_thread(self._verify)
        self._watch = Watch(self.own, archives, self.run.path)
        await self._watch.look(time.monotonic())

    def _prepare(self) -> dict[str, Packed]:
        archives = read_archives(self.plan)
        check_precisions(self.plan, archives)
        check_packed(archives.values())
        check_machine(self.plan)
        check_ports_free(list_ports(self.plan, self.name))
        self.run.failure.unlink(missing_ok=True)
        if link := make_allocator_link(self.plan):
            self._report(f"{self.name}: {link}")
        prepare_folders(self.run)
        find_metrics_folder(self.plan).mkdir(mode=0o700, parents=True, exist_ok=True)
        return archives

    def _verify(self) -> None:
        from server.verify import render, verify_instance  # a supervisor watches sooner without it

        result = verify_instance(self.plan, self.name, self._server_run)
        self.verified, self.verified_at = result.by_row(), tell_time()
        if not result.good:
            lines = tuple(render(result, self.plan).splitlines())
            raise StartFailed(Failure(cause="the live server differs from the plan", lines=lines))

    def _forget(self) -> None:
        if self._watching:
            self._watching.cancel()
        if self._watch:
            self._watch.close()
        self._watch = self._watching = None
        self.seen, self._memory, self._doomed, self._ended = Observation(), Memory(), "", {}

    async def kill(self) -> None:
        """End all of it at once, TorchServe first: that resets its connections."""
        self._forget()
        deadline = time.monotonic() + KILLED_WITHIN_S
        # One may start another one before it is signalled: look again until nothing is found.
        while (found := find_marked(self.run.path)) and time.monotonic() < deadline:
            await self._signal(sorted(found, key=lambda one: not one.is_java), signal.SIGKILL, 1.0)
        if self.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_S)
        self.process = None

    async def end(self, seconds: float) -> None:
        """Let it answer what it has, for so long at most; then nothing of it is left."""
        for task in filter(None, (self._starting, self._killing)):
            task.cancel()
        self._starting = self._killing = None
        self._forget()
        java = [one for one in find_marked(self.run.path) if one.is_java]
        await self._signal(java, signal.SIGTERM, seconds)
        if java:
            await self._signal(find_marked(self.run.path), signal.SIGTERM, TERMINATED_WITHIN_S)
        await self.kill()
        remove_traces(self.run)

    async def _signal(self, processes: list[Process], number: signal.Signals, seconds: float) -> None:
        """And wait until they are gone, for so long at most."""
        for process in processes:
            send_signal(process, number)
        deadline = time.monotonic() + seconds
        while any(map(is_alive, processes)) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
