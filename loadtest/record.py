"""Keeps every request of a Locust run, whoever sends it: a plugin that stands beside any locustfile.

`locust -f loadtest/record.py,mine.py --record rows.json …` writes what `request` events told, from one
process or from the workers of a master. Times count from the begin of the measured window: `--warm-up`
seconds (and a moment, so that spawning delays nothing) after the start. Locust's own statistics begin there
too.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.runners import MasterRunner, WorkerRunner

sys.path.append(str(Path(__file__).resolve().parents[1]))
from loadtest.schedule import LEAD_S

FINISH, REPORT, USERS = "record-finish", "record-report", "record-users"
"""Messages: the master asks for reports; a worker brings its own; how many users there are in all."""
COLLECT_S = 90.0
"""The master waits this long for the reports, beside the stop time-out."""
MOST_ANSWERS = 50_000
"""Further different answers are not kept; sums in batches of other sizes differ in the last digits."""
NO_ANSWER = -1


class Recorder:
    """What one process saw in one run."""

    def __init__(self, warm_up_s: float) -> None:
        self.warm_up_s = warm_up_s
        ahead = LEAD_S + warm_up_s
        self.zero, self.wall_zero = time.perf_counter() + ahead, time.time() + ahead
        self.rows: list[tuple[int, float | None, float, float, int, int, str]] = []
        self.answers: dict[str, int] = {}
        self.stopping = Event()
        self.digest = ""
        """Of the payloads: every process must send the same."""
        self._cpu = {"zero": 0.0, "end": 0.0}
        self._end = 0.0
        gevent.spawn_later(ahead, self._note, "zero")

    def _note(self, moment: str) -> None:
        self._cpu[moment], self._end = time.process_time(), self.now()

    def now(self) -> float:
        """Seconds from the begin of the measured window."""
        return time.perf_counter() - self.zero

    def stop(self) -> None:
        """No request starts any more."""
        if not self.stopping.is_set():
            self.stopping.set()
            self._note("end")

    def add(self, *, payload: int, due: float, sent: float, status: int, body: str, error: str) -> None:
        """One request that has ended; equal answers are kept once."""
        kept = body and (body in self.answers or len(self.answers) < MOST_ANSWERS)
        number = self.answers.setdefault(body, len(self.answers)) if kept else NO_ANSWER
        # JSON has no NaN.
        self.rows.append((payload, None if math.isnan(due) else due, sent, self.now(), status, number, error))

    def report(self) -> dict[str, Any]:
        """What the master collects; `measured_s` is how long the load lasted after the window had begun."""
        measured = max(self._end, 1e-3)
        return {
            "rows": self.rows,
            "answers": list(self.answers),
            "cpu_share": (self._cpu["end"] - self._cpu["zero"]) / measured if self._cpu["zero"] else 0.0,
            "wall_zero": self.wall_zero,
            "measured_s": self._end,
            "payloads": self.digest,
        }


class State:
    """Of this process."""

    recorder: Recorder
    """Of the run that is on; the web page can start several, one after the other."""
    reports: list[dict[str, Any]]
    users = 1
    """In all processes; of a worker, as its master said."""


@events.init_command_line_parser.add_listener
def add_arguments(parser: LocustArgumentParser) -> None:
    """Locust hands them on to its workers."""
    parser.add_argument("--record", default="", metavar="FILE", env_var="LOCUST_RECORD",
                       help="write every request to this file, as JSON", include_in_web_ui=False)  # fmt: skip
    parser.add_argument("--warm-up", type=float, default=0.0, metavar="SECONDS", env_var="LOCUST_WARM_UP",
                       help="load before the statistics begin (default: 0)")  # fmt: skip


@events.init.add_listener
def prepare(environment: Any, **_: Any) -> None:
    """Listen, and speak with the other processes."""
    environment.events.request.add_listener(record)
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.register_message(FINISH, finish)
        runner.register_message(USERS, hear_users)
    elif isinstance(runner, MasterRunner):
        runner.register_message(REPORT, collect)


@events.test_start.add_listener
def start(environment: Any, **_: Any) -> None:
    """A fresh run."""
    State.recorder, State.reports = Recorder(environment.parsed_options.warm_up or 0.0), []
    if isinstance(environment.runner, MasterRunner):
        tell_users(environment)
    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn_later(State.recorder.warm_up_s + LEAD_S, environment.runner.stats.reset_all)


def tell_users(environment: Any) -> None:
    environment.runner.send_message(USERS, environment.runner.target_user_count)


@events.spawning_complete.add_listener
def spawned(user_count: int, **_: Any) -> None:
    """The page may change the number of users during a run."""
    State.users = max(1, user_count)


def hear_users(environment: Any, msg: Any, **_: Any) -> None:
    """Of a worker."""
    State.users = max(1, int(msg.data))


def count_users(environment: Any) -> int:
    """Users in all processes."""
    if isinstance(environment.runner, WorkerRunner):
        return State.users
    return max(1, environment.runner.target_user_count)


@events.test_stopping.add_listener
def stopping(**_: Any) -> None:
    if hasattr(State, "recorder"):
        State.recorder.stop()


@events.test_stop.add_listener
def stopped(environment: Any, **_: Any) -> None:
    """One process has all; a master asks its workers, who let the last requests end first."""
    file, runner = environment.parsed_options.record, environment.runner
    if not file or isinstance(runner, WorkerRunner):
        return
    if isinstance(runner, MasterRunner):
        workers = runner.worker_count
        runner.send_message(FINISH)
        with gevent.Timeout(environment.stop_timeout + COLLECT_S, False):
            while len(State.reports) < min(workers, runner.worker_count):
                gevent.sleep(0.05)
    else:
        State.reports = [State.recorder.report()]
    Path(file).write_text(json.dumps(State.reports), encoding="utf-8")


def finish(environment: Any, **_: Any) -> None:
    """Of a worker: end the users, then report."""
    environment.runner.stop()
    environment.runner.send_message(REPORT, State.recorder.report())


def collect(msg: Any, **_: Any) -> None:
    """Of the master."""
    State.reports.append(msg.data)


def record(response_time: float, response: Any, exception: Any, context: Any, **_: Any) -> None:
    """Listener of the `request` event, which fires as soon as an answer is read."""
    context = context or {}
    status = int(getattr(response, "status_code", 0) or 0)
    content = getattr(response, "content", None) if status and "payload" in context else None
    recorder = State.recorder
    recorder.add(
        payload=context.get("payload", -1),
        due=context.get("due", math.nan),
        sent=context.get("sent", recorder.now() - response_time / 1000),
        status=status or (200 if exception is None else 0),
        body=content.decode(errors="replace") if isinstance(content, (bytes, bytearray)) else "",
        error="" if exception is None else f"{type(exception).__name__}: {exception}".split("\n")[0][:120],
    )
