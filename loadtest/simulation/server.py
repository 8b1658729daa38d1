"""A discrete-event model of TorchServe as it batches, and of the door in front of several of them.

TorchServe 0.12 (Model.pollBatch): the worker that holds the model's one lock takes the first job, waiting
for it as long as it takes, then waits until the batch is full or `max_batch_delay` has passed since that
job, then lets go of the lock; the model's other idle workers wait for the lock meanwhile. Jobs wait in one
queue, first come first served; one that finds it full is refused. Behind a door each instance is such a
server of its own, the door hands each no more than `in_flight` requests at a time, the others wait in the
door (all deadlines alike: in order of arrival), and who waits there beyond the deadline is refused.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtest.simulation.service import QUANTILES, ServiceTimes, list_quantiles

_TIMER, _END = 0, 1


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """What decides how requests wait; times in seconds."""

    workers: int
    """In all instances together; each has as many."""
    batch: int
    delay_s: float
    queue: int = 100
    """Of each instance."""
    instances: int = 1
    in_flight: int = 0
    """The door hands each instance so many at once; 0 is no door."""
    deadline_s: float = math.inf
    """Who waits longer in the door is refused."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What became of each request, in the order of arrival."""

    arrivals: np.ndarray
    """Seconds, ascending."""
    ended: np.ndarray
    """When it was answered; infinite: refused."""
    worker_s: float
    """Seconds that the workers themselves computed, all together; not what others took of their cores."""

    @property
    def latency(self) -> np.ndarray:
        """Seconds; infinite where it was refused."""
        return self.ended - self.arrivals

    @property
    def refused(self) -> int:
        return int(np.isinf(self.ended).sum())


@dataclass(kw_only=True)
class _Instance:
    """One TorchServe with its lock."""

    idle: int
    waiting: deque[int] = field(default_factory=deque)
    gathered: list[int] = field(default_factory=list)
    """The batch that the holder of the lock gathers; empty while it waits for a first job."""
    round: int = 0
    """Of gathering: a timer of an earlier one means nothing."""
    in_flight: int = 0


def simulate(plan: ServerPlan, service: ServiceTimes, arrivals: np.ndarray, *, seed: int = 0) -> Simulated:
    """Serve requests that arrive at these times, in seconds; service times are drawn from the seed."""
    return _Run(plan, service, arrivals, seed).run()


def replay(
    plan: ServerPlan, service: ServiceTimes, due: Sequence[float], *, begin_s: float, end_s: float, seed: int
) -> np.ndarray:
    """Latencies, in seconds, of those of a load's very arrivals that were due in its window; the others keep
    the server as busy as they did. Some hundred other arrivals at the same rate have a p50 a tenth apart."""
    arrivals = np.sort(due)
    latency = simulate(plan, service, arrivals, seed=seed).latency
    return latency[(arrivals >= begin_s) & (arrivals < end_s)]


class _Run:
    def __init__(self, plan: ServerPlan, service: ServiceTimes, arrivals: np.ndarray, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._plan, self._table, self._arrivals = plan, list_quantiles(service), arrivals
        self._draws = random.integers(0, QUANTILES, len(arrivals)).tolist()
        self._outside = service.overhead.outside_s
        self._others = [service.overhead.others_s(size) for size in range(plan.batch + 1)]
        self._instances = [_Instance(idle=plan.workers // plan.instances) for _ in range(plan.instances)]
        self._door: deque[int] = deque()
        self._events: list[tuple[float, int, int, int, list[int]]] = []
        self._ended = [math.inf] * len(arrivals)
        self._batches = 0
        self._worker_s = 0.0

    def run(self) -> Simulated:
        """Arrivals and events in order of time; ends when all are answered or refused."""
        events, arrivals, number = self._events, self._arrivals.tolist(), 0
        while number < len(arrivals):
            now = arrivals[number]
            if events and events[0][0] <= now:
                self._happen(*heapq.heappop(events))
            elif self._nobody_can_begin():
                # Nothing changes for them until the next event: all at once, for the speed of it.
                until = bisect.bisect_left(arrivals, events[0][0], number)
                self._queue_up(range(number, until))
                number = until
            else:
                self._arrive(number, now)
                number += 1
        while events:
            self._happen(*heapq.heappop(events))
        ended = np.array(self._ended)
        return Simulated(arrivals=self._arrivals, ended=ended, worker_s=self._worker_s)

    def _nobody_can_begin(self) -> bool:
        if self._plan.in_flight:
            return all(one.in_flight >= self._plan.in_flight for one in self._instances)
        return not self._instances[0].idle

    def _queue_up(self, numbers: range) -> None:
        """In the door, or in the one instance as far as its queue has room; the others are refused."""
        if self._plan.in_flight:
            self._door.extend(numbers)
            return
        (one,) = self._instances
        entering = numbers[: max(0, self._plan.queue - len(one.waiting))]
        one.in_flight += len(entering)
        one.waiting.extend(entering)

    def _happen(self, now: float, kind: int, where: int, number: int, batch: list[int]) -> None:
        one = self._instances[where]
        if kind == _TIMER:
            if number == one.round and one.gathered:
                self._dispatch(where, one, now)
                self._gather(where, one, now)
            return
        for request in batch:
            self._ended[request] = now + self._outside
        one.idle += 1
        one.in_flight -= len(batch)
        if self._door:
            self._hand_over(one, now)
        self._gather(where, one, now)

    def _arrive(self, number: int, now: float) -> None:
        """To the instance with the fewest under way."""
        where = min(range(len(self._instances)), key=lambda n: self._instances[n].in_flight)
        one = self._instances[where]
        if len(one.waiting) < self._plan.queue:
            one.in_flight += 1
            one.waiting.append(number)
            self._gather(where, one, now)

    def _hand_over(self, one: _Instance, now: float) -> None:
        """From the door, as many as there is room for; who is too late is refused."""
        while self._door and one.in_flight < self._plan.in_flight:
            number = self._door.popleft()
            if now - self._arrivals[number] <= self._plan.deadline_s:
                one.in_flight += 1
                one.waiting.append(number)

    def _gather(self, where: int, one: _Instance, now: float) -> None:
        """The holder of the lock takes what is there; a full batch starts, else it waits for the timer."""
        size = self._plan.batch
        while one.idle and one.waiting:
            first = not one.gathered
            while one.waiting and len(one.gathered) < size:
                one.gathered.append(one.waiting.popleft())
            if len(one.gathered) == size:
                self._dispatch(where, one, now)
            elif first:
                heapq.heappush(self._events, (now + self._plan.delay_s, _TIMER, where, one.round, []))

    def _dispatch(self, where: int, one: _Instance, now: float) -> None:
        """The gathered batch goes to the worker; the lock is free again."""
        batch, one.gathered = one.gathered, []
        one.round += 1
        one.idle -= 1
        took = self._table[len(batch)][self._draws[self._batches]]
        self._batches += 1
        self._worker_s += took - self._others[len(batch)]
        heapq.heappush(self._events, (now + took, _END, where, self._batches, batch))
