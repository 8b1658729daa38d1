"""HAProxy: started, set to who serves and how long a request will wait, emptied at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from config.installed import find_haproxy
from config.plan import Plan
from config.proxy import list_variables
from config.terminal import Report
from server.errors import ServerError
from server.haproxy import HaproxyError, Runtime, Stat
from server.launch import inherit, list_server_cpus, spawn
from server.logs import read_log
from server.rundir import MARK, RunDir
from server.state import Part, Phase
from server.supervisor.judge import Kind
from server.supervisor.requests import RequestPipe
from server.supervisor.restarts import Restarts
from server.tokens import write_bearers

ENDS_WITHIN_S = 5.0
SOFT_STOP_S = 1.0
UNHEARD_S = 5.0  # HAProxy answers its socket within milliseconds, however busy
POLL_S = 0.1
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""glibc maps each buffer of 384 KiB anew and gives it back: 28 to 64 page faults and a fifth of HAProxy's CPU
for each request of 100 kB (measured). Its memory stays within the plan's all the same."""
WINDOW_S = 2.0  # long beside a batch, short beside a minute of overload
LEAST_ANSWERED = 8  # in a window; fewer tell nothing of a rate
SHARE = 0.5  # of the newest window in the prediction
SERVICE_MARGIN = 1.5
"""HAProxy knows the mean, and half of all take longer. At 1.5 × the capacity with deadlines of a second 2,706
of 10,051 that were let in by the mean were computed and exceeded theirs (seen)."""


class Prediction(NamedTuple):
    """How long a request of a model will wait: HAProxy rejects one whose deadline would pass."""

    us_per_request: int = 0  # 1 / rate; 0 while it is not known: then nothing is rejected
    service_ms: int = 0  # time in an instance, with a margin


class Predictor:
    """Learns that of one model from what was answered. A rate is only known while the queue is never empty;
    what is learnt then holds until it is learnt again."""

    def __init__(self) -> None:
        self.prediction = Prediction()
        self._first: tuple[float, int] | None = None  # when the window began, and what was answered by then

    def learn(self, at: float, stat: Stat) -> Prediction:
        """What holds from now on."""
        if self._first is None or not stat.queued or stat.answered < self._first[1]:
            self._first = (at, stat.answered) if stat.queued else None
            return self.prediction
        seconds, answered = at - self._first[0], stat.answered - self._first[1]
        if seconds >= WINDOW_S and answered >= LEAST_ANSWERED:
            us, ms, before = seconds * 1e6 / answered, SERVICE_MARGIN * stat.service_ms, self.prediction
            if before.us_per_request:
                us = SHARE * us + (1 - SHARE) * before.us_per_request
                ms = SHARE * ms + (1 - SHARE) * before.service_ms
            self.prediction, self._first = Prediction(round(us), round(ms)), (at, stat.answered)
        return self.prediction


class Serving(NamedTuple):
    """What HAProxy hands over of one model to one instance."""

    workers: int  # that can be asked; with none, nothing is handed over
    planned: int = 1
    maxconn: int = 0  # requests at once, of all planned workers
    large_maxconn: int = 0


class Proxy:
    """One HAProxy; what it was set to is set again after it was started again."""

    def __init__(self, run: RunDir, plan: Plan, report: Report) -> None:
        self._run, self._plan, self._report = run, plan, report
        self._restarts = Restarts("proxy", report)
        self._runtime = Runtime(Path(run.proxy_files.admin_socket))
        self._applied: dict[tuple[str, str], Serving] = {}
        self._predicted: dict[str, Prediction] = {}
        self._predictors = {name: Predictor() for name in plan.models}
        self._heard, self._kind = 0.0, Kind.ENDED
        self._listener = listen(plan.proxy.host, plan.proxy.port, backlog=plan.proxy.connections)
        """What clients connect to; it stays open while HAProxy is started again."""
        self.requests = RequestPipe()
        self.stats: Mapping[str, Stat] = {}
        """By model, of the last look."""
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.was_ready = False  # since the supervisor began: until then its end is one of the start

    def _launch(self) -> None:
        serving = {instance for (_, instance), now in self._applied.items() if now.workers}
        self._applied, self._predicted = {}, {}
        self._restarts.note_start()
        self._heard = time.monotonic()
        try:
            Path(self._run.proxy_files.admin_socket).unlink(missing_ok=True)
            command = [find_program(self._plan), "-db", "-f", str(self._run.proxy_config)]
            requests = self.requests.write_end
            environment = make_environment(self._run, self._plan, self._listener, requests, serving)
            cpus, fds = list_server_cpus(self._plan), [self._listener.fileno(), requests]
            self.process = spawn(command, self._run.path, environment, self._run.proxy_log, cpus, fds)
        except (OSError, ServerError) as problem:  # no memory for another process, a full disk
            self._restarts.note_end(f"cannot be started: {problem}", Kind.START_FAILED)

    def look(self, now: float) -> None:
        """Start it where it does not run; end it where it does not answer. `now`: when the turn began."""
        if self.process and (code := self.process.poll()) is not None:
            self.ready, self.process = False, None
            said = (read_log(self._run.proxy_log).strip().splitlines() or ["it said nothing"])[-1]
            how = f"(signal {signal.Signals(-code).name})" if code < 0 else f"(status {code}): {said}"
            self._restarts.note_end(f"HAProxy ended {how}", self._kind)
            self._kind = Kind.ENDED
        if not self.process:
            if self._restarts.due:
                self._launch()
            return
        try:
            self.stats, at = self._runtime.read_stats(), time.monotonic()
            for model, predictor in self._predictors.items():
                predictor.learn(at, self.stats[model])
                self._runtime.wake(self.stats[model])
            self.ready = self.was_ready = True
            self._heard = now
        except HaproxyError as problem:
            self.ready = False
            if now - self._heard > UNHEARD_S:
                self._report(f"proxy: {problem}; ended, to start it again")
                self._kind = Kind.NO_ANSWER
                self.process.kill()

    def apply(self, serving: Mapping[tuple[str, str], Serving]) -> None:
        """Set what of each (model, instance) can be asked, and how long a request takes."""
        if not self.ready:
            return
        try:
            for place, now in serving.items():
                if self._applied.get(place) != now:
                    self._runtime.set_serving(*place, *now)
                    self._applied[place] = now
            for model, predictor in self._predictors.items():
                if self._predicted.get(model) != (found := predictor.prediction):
                    self._runtime.set_prediction(model, *found)
                    self._predicted[model] = found
        except HaproxyError as problem:
            self._report(f"proxy: {problem}")

    def drain(self, seconds: float) -> None:
        """Let nothing new in; wait until all is answered, for so long at most."""
        if not self.ready:
            return
        deadline = time.monotonic() + seconds
        try:
            self._runtime.reject_new()
            while (left := self._runtime.count_without_response()) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        except HaproxyError as problem:
            self._report(f"proxy: cannot be drained: {problem}")
            return
        self._report(f"proxy: drained, {left} requests without an answer")

    def count_in_hand(self, instances: Sequence[str]) -> int:
        """Requests that these instances have; 0 where HAProxy is just being started again, and has none."""
        try:
            return self._runtime.count_in_hand(instances) if self.ready else 0
        except HaproxyError:
            return 0

    def end(self) -> None:
        """It answers what it still has, and listens no longer."""
        self._listener.close()
        if not self.process:
            return
        for number, seconds in (
            (signal.SIGUSR1, SOFT_STOP_S), (signal.SIGTERM, ENDS_WITHIN_S), (signal.SIGKILL, None)
        ):  # fmt: skip
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def change_token(self) -> None:
        """From now on the one in the token's file, or in the one that was given, is good, and no other."""
        self._runtime.set_token(write_bearers(self._run, self._plan))

    def find_rate(self, model: str) -> float:
        """Requests a second that are answered while the queue is never empty; 0: it was not seen yet."""
        us = self._predictors[model].prediction.us_per_request
        return 1e6 / us if us else 0.0

    def describe(self) -> Part:
        """For the record."""
        if not self.process:
            return self._restarts.describe(None, None)
        unready = Phase.UNWELL if self._restarts.part.restarts else Phase.STARTING
        return self._restarts.describe(self.process.pid, Phase.READY if self.ready else unready)


def find_program(plan: Plan) -> str:
    """HAProxy's path; ServerError says how to get it."""
    found = find_haproxy(Path(plan.prefix))
    if not found:
        raise ServerError("HAProxy is not installed: run `make setup`")
    return found


def listen(host: str, port: int, *, backlog: int) -> socket.socket:
    """`::` is both families."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=host == "::")


def make_environment(
    run: RunDir, plan: Plan, listener: socket.socket | None = None, requests: int | None = None,
    serving: Collection[str] = (),
) -> dict[str, str]:  # fmt: skip
    """What HAProxy is started with: nothing of the shell's, its mark, and what its configuration names."""
    at = f"fd@{listener.fileno()}" if listener else ""
    target = "stdout" if requests is None else f"fd@{requests}"
    variables = list_variables(plan, listener=at, requests=target, serving=serving)
    return {**inherit(os.environ), **HEAP, MARK: str(run.path), **variables}


def check_configuration(run: RunDir, plan: Plan, file: Path) -> None:
    """ServerError with HAProxy's own words where it does not take the configuration."""
    checked = subprocess.run(
        [find_program(plan), "-c", "-f", str(file)],
        cwd=run.path, env=make_environment(run, plan), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if checked.returncode:
        said = "\n  ".join((checked.stderr or checked.stdout).strip().splitlines()[:5])
        raise ServerError(f"HAProxy rejects {file}:\n  {said}")
