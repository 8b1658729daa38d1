"""A reload from the order to its end: what is planned in run/next takes over, or nothing changes.

Other instances are started and verified, then the old ones are drained. Where the memory holds one set only,
an old instance ends before a new one starts, one after the other. What fails on the way is taken back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence

import psutil

from config.errors import ConfigError
from config.plan import Plan, read_plan
from config.terminal import Report
from server.archives import check_packed, check_precisions, read_archives
from server.errors import ServerError
from server.processes import DRAIN_SECONDS
from server.rundir import RunDir
from server.state import begin_state, read_state, write_state
from server.supervisor.instance import Instance
from server.supervisor.proxy import Proxy, check_configuration

DONE = "done"
FAILED = "failed: "
ENDS_WITHIN_S = 20.0  # an instance that has nothing to answer takes 2-3 s
SPARE = 1.1  # the new set may hold a tenth more than the old one


class ReloadFailed(Exception):  # noqa: N818 - it is an outcome, with its explanation
    """Nothing was changed, and why."""


class Reload:
    """One reload; `step` is called once a turn until `ended`."""

    def __init__(
        self, run: RunDir, plan: Plan, proxy: Proxy, instances: dict[str, Instance], report: Report
    ) -> None:
        """Nothing is started yet. What is in the supervisor's own `instances` is watched and asked."""
        self.plan, self.ended = plan, False
        self._run, self._proxy, self._instances, self._report = run, proxy, instances, report
        self._old = list(instances.values())
        self._new: list[Instance] = []
        self._gone: list[Instance] = []
        self._steps = self._go()

    def step(self) -> str:
        """What is done now, "done", or "failed: " and why."""
        try:
            return next(self._steps)
        except StopIteration:
            how = DONE
        except (ReloadFailed, ServerError, ConfigError, OSError) as problem:
            how = f"{FAILED}{problem}; the server is what it was"
        self.ended = True
        self._report(f"reload: {how}")
        return how

    def _go(self) -> Iterator[str]:
        checked = asyncio.ensure_future(asyncio.to_thread(_check, self._run))
        while not checked.done():
            yield "checking archives and configuration"
        following = checked.result()
        self._new = [Instance(name, following, self._run, self._report) for name in following.instances]
        for one in self._new:
            one.gentle = True
        fit = fit_together(self._instances, read_available_mib(), int(following.machine["memory_limit_mib"]))
        how = "old and new together" if fit else "one instance after the other: the memory holds one set only"
        self._report(f"reload: {how}")
        yield from self.move(together=fit)
        self.plan = _commit(self._run)
        try:  # the file may have been edited
            self._proxy.change_token()
        except ServerError as problem:
            self._report(f"reload: the token is what it was: {problem}")

    def move(self, *, together: bool) -> Iterator[str]:
        """Words for what is waited for; ends when only the new set is left, or with ReloadFailed."""
        pairs: list[tuple[Sequence[Instance], Sequence[Instance]]] = [(self._old, self._new)]
        if not together:
            count = max(len(self._old), len(self._new))
            pairs = [(self._old[place : place + 1], self._new[place : place + 1]) for place in range(count)]
        try:
            for olds, news in pairs:
                if not together:
                    yield from self._retire(olds)
                yield from self._start(news)
                if together:
                    yield from self._retire(olds)
        except (ReloadFailed, ServerError, OSError):
            yield from self._take_back()
            raise

    def _start(self, news: Sequence[Instance]) -> Iterator[str]:
        """One at a time: a load takes the cores from those that serve."""
        for new in news:
            self._instances[new.name] = new
            while not new.ready:
                if causes := new.describe().causes:
                    raise ReloadFailed(f"{new.name}: {causes[-1].cause}")
                yield f"starting {new.name}"
            self._report(f"reload: {new.name} verified; the proxy asks it from now on")

    def _retire(self, olds: Sequence[Instance]) -> Iterator[str]:
        """No new requests; then the end, once every request has its response."""
        names = [old.name for old in olds]
        for old in olds:
            old.retired = True
        yield f"draining {', '.join(names)}"  # the proxy is told in this turn
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._proxy.count_in_hand(names) and time.monotonic() < deadline:
            yield f"draining {', '.join(names)}"
        yield from self._end(olds, ENDS_WITHIN_S)
        for old in olds:
            del self._instances[old.name]
            self._gone.append(old)

    def _end(self, instances: Sequence[Instance], seconds: float) -> Iterator[str]:
        ends = [asyncio.ensure_future(one.end(seconds)) for one in instances]
        while not all(end.done() for end in ends):
            yield f"ending {', '.join(one.name for one in instances)}"
        for end in ends:
            end.result()

    def _take_back(self) -> Iterator[str]:
        started = [one for one in self._new if self._instances.pop(one.name, None)]
        for old in self._old:
            old.retired = False
            if old in self._gone:
                old = Instance(old.name, self.plan, self._run, self._report)
            self._instances[old.name] = old
        yield from self._end(started, 0.0)


def _check(run: RunDir) -> Plan:
    """The plan in run/next; ServerError or ConfigError where it cannot be served."""
    following = read_plan(run.next)
    archives = read_archives(following)
    check_precisions(following, archives)
    check_packed(archives.values())
    check_configuration(run, following, run.next / run.proxy_config.name)
    return following


def fit_together(old: Mapping[str, Instance], available_mib: int, limit_mib: int) -> bool:
    """Whether the memory holds as much again as the old set holds now, and a tenth more: the machine's, and
    what this server may have of it, as a container's limit says."""
    held = sum(sum(instance.seen.anonymous_mib.values()) for instance in old.values())
    return held * SPARE <= min(available_mib, limit_mib - held)


def read_available_mib() -> int:
    """Memory that could be taken without swapping, of the machine."""
    return int(psutil.virtual_memory().available) >> 20


def _commit(run: RunDir) -> Plan:
    """What was next is the plan now, and what `make status` and `make verify` compare with."""
    for file in (run.proxy_config, run.plan):
        (run.next / file.name).replace(file)
    plan = read_plan(run.plan)
    if state := read_state(run.state):
        write_state(run.state, dataclasses.replace(
            begin_state(plan, read_archives(plan), run.proxy_config),
            phase=state.phase, started_at=state.started_at, seconds_to_ready=state.seconds_to_ready,
        ))  # fmt: skip
    return plan
