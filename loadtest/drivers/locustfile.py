"""What Locust runs for `locust_closed`: users that send the next payload, and one recorder of all samples."""

from __future__ import annotations

import itertools
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import gevent
import numpy as np
from locust import FastHttpUser, constant, events, task
from locust.exception import StopUser

from loadtest.drivers.locust_closed import JOB_VARIABLE, SAMPLES_FILE, USAGE_FILE
from loadtest.payloads import read_list, shuffle_endlessly
from loadtest.samples import Samples

POLL_SECONDS = 0.05

JOB = json.loads(Path(os.environ[JOB_VARIABLE]).read_text(encoding="utf-8"))
FOLDER = Path(JOB["payloads"])
PAYLOADS = read_list(FOLDER)
BODIES = [(FOLDER / payload.file).read_bytes() for payload in PAYLOADS]
AUTHORIZATION = {"Authorization": f"Bearer {JOB['token']}"} if JOB["token"] else {}


class Recorder:
    """Decides what is sent next and until when, and keeps a row of each answer."""

    def __init__(self) -> None:
        count = len(PAYLOADS)
        shuffled = shuffle_endlessly(count, seed=JOB["seed"])
        self.order = shuffled if JOB["shuffle"] else itertools.cycle(range(count))
        self.sent = 0
        self.began: float | None = None
        self.cpu_before = 0.0
        self.rows: list[tuple[float, float, int, int, int]] = []

    def next(self) -> int:
        """The payload to send; StopUser when the run is over."""
        if self.began is None:
            self.began, self.cpu_before = time.perf_counter(), read_cpu_seconds()
        if self.over:
            raise StopUser
        self.sent += 1
        return next(self.order)

    @property
    def over(self) -> bool:
        """Whether no further request may start."""
        if JOB["most_requests"] is not None and self.sent >= JOB["most_requests"]:
            return True
        limit = JOB["warm_up_seconds"] + JOB["seconds"]
        return self.began is not None and time.perf_counter() - self.began >= limit

    def add(self, *, response_time: float, response: Any, context: dict[str, int], **about: Any) -> None:
        """Listener of Locust's `request` event; it fires as soon as an answer is read."""
        latency = response_time / 1000
        start = time.perf_counter() - (self.began or 0.0) - latency
        status = int(getattr(response, "status_code", 0) or 0)
        self.rows.append((start, latency, status, about["response_length"], context["payload"]))

    def save(self) -> None:
        """Write all samples, and what CPU time they cost."""
        used = {"cpu_seconds": read_cpu_seconds() - self.cpu_before}
        (Path(JOB["folder"]) / USAGE_FILE).write_text(json.dumps(used), encoding="utf-8")
        start, latency, status, size, payload = np.array(self.rows, dtype=np.float64).reshape(-1, 5).T
        integers = {"status": status.astype(np.int16), "size": size.astype(np.int64)}
        samples = Samples(start=start, latency=latency, payload=payload.astype(np.int32), **integers)
        samples.save(Path(JOB["folder"]) / SAMPLES_FILE)


def read_cpu_seconds() -> float:
    """CPU time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


RECORDER = Recorder()


class ClosedLoopUser(FastHttpUser):
    """Sends one request after the other on one connection."""

    wait_time = constant(0)
    concurrency = 1
    network_timeout = connection_timeout = JOB["timeout_s"]

    @task
    def send(self) -> None:
        """The next payload of the common order."""
        number = RECORDER.next()
        payload = PAYLOADS[number]
        headers = {"Content-Type": payload.content_type, **AUTHORIZATION}
        # Locust passes the context on to the request event, and sends bytes as they are.
        about = {"headers": headers, "context": {"payload": number}}
        self.client.post(payload.path, data=BODIES[number], **about)  # type: ignore[arg-type]


@events.test_start.add_listener
def watch(environment: Any, **_: Any) -> None:
    """Quit when every user has its last answer: none is broken off, and the server is left idle."""
    events.request.add_listener(RECORDER.add)

    def wait() -> None:
        while not (RECORDER.over and environment.runner.user_count == 0):
            gevent.sleep(POLL_SECONDS)
        RECORDER.save()
        environment.runner.quit()

    gevent.spawn(wait)
