"""The image with a door inside: served and verified; a dead worker, a reload and the end cost no request."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.image.containers import (
    HOST,
    NO_RIGHTS,
    READY_SECONDS,
    Container,
    Load,
    own_port,
    read_canary,
    start_container,
    write_secret,
)

TOKEN = "a-token-made-for-the-tests"
STOP_SECONDS = 60

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two instances want two CPUs")


@pytest.fixture(scope="module")
def served(engine, tag, store, tmp_path_factory) -> Iterator[Container]:
    """Two instances, so that one can answer while the other one cannot."""
    token = write_secret(tmp_path_factory.mktemp("secret"), TOKEN)
    arguments = ["--store", str(store), "--models", "resnet50", "--instances", "2", "--memory", "7g"]
    arguments += ["--token-file", str(token)]
    with start_container(
        engine, tag, "cpu-kit-test-door", own_port(), arguments, front="haproxy"
    ) as container:
        container.wait_until_healthy()
        yield container


def read_json(container: Container, file: str) -> dict[str, Any]:
    """Of the run directory; empty where there is no such file now."""
    return json.loads(container.run_inside("cat", f"/run/kit/{file}", check=False) or "{}")


def read_workers(container: Container, instance: str) -> set[int]:
    looks = read_json(container, f"instances/{instance}/looks.json")
    return {pid for look in looks.values() for pid in look["ready"]}


def wait_for(container: Container, happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not happened():
        assert container.is_running(), container.log[-1]
        assert time.monotonic() < deadline, container.log[-5:]
        time.sleep(1)


def is_whole(container: Container) -> bool:
    return read_json(container, "supervisor.json")["phase"] == "ready"


def verify(container: Container) -> None:
    assert "verify: all " in container.run_inside("kit", "verify")


def make_load(container: Container, store) -> Load:
    return Load(container=container, model="resnet50", body=read_canary(store), token=TOKEN, users=4)


def ask(container: Container, path: str) -> int:
    """Without a token."""
    connection = http.client.HTTPConnection(HOST, container.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_it_is_served_and_verified(served, store):
    assert served.predict("resnet50", read_canary(store), TOKEN)[0] == 200
    verify(served)
    assert "2 instances behind HAProxy" in served.run_inside("kit", "status")
    assert [ask(served, path) for path in ("/ready", "/live", "/predictions/resnet50")] == [200, 200, 401]


def test_the_token_of_the_file_is_the_doors_and_the_log_does_not_tell_it(served, store):
    assert served.read_token() == TOKEN
    assert served.predict("resnet50", read_canary(store), "another-token-of-length")[0] == 401
    assert '-H "Authorization: Bearer $TOKEN"' in served.run_inside("kit", "status")
    assert TOKEN not in served.call("logs", served.name)


def test_the_door_alone_listens_beyond_loopback_and_no_part_has_rights(served):
    beyond = {port for port, everywhere in served.read_listening() if everywhere}
    assert beyond == {served.port}
    assert served.read_rights() == NO_RIGHTS


def test_each_line_of_the_log_says_whose_it_is(served):
    named = {(line["source"], line.get("instance")) for line in served.log}
    assert {("server", None), ("torchserve", "a1"), ("worker", "a2"), ("console", "a1")} <= named


def test_a_worker_that_is_killed_costs_no_request(served, store):
    (worker,) = read_workers(served, "a1")
    load = make_load(served, store)
    with load.running():
        wait_for(served, lambda: load.count()[200] >= 10)
        served.run_inside("sh", "-c", f"kill -KILL {worker}")
        wait_for(served, lambda: read_workers(served, "a1") - {worker} and is_whole(served))
    print(f"a worker killed: {dict(load.count())}")
    assert set(load.count()) == {200}
    verify(served)


def test_a_reload_inside_costs_no_request(served, store):
    load = make_load(served, store)
    with load.running():
        wait_for(served, lambda: load.count()[200] >= 10)
        said = served.call("exec", "--env", "DEADLINE_MS=30000", served.name, "kit", "reload")
    print(f"a reload: {dict(load.count())}")
    assert "reload: done" in said
    assert set(load.count()) == {200}
    assert served.plan["inputs"]["deadline_ms"] == 30_000
    assert ("torchserve", "b1") in {(line["source"], line.get("instance")) for line in served.log}
    wait_for(served, lambda: is_whole(served))
    verify(served)


def test_a_signal_in_mid_load_cuts_nothing_off(served, store):
    """The last one: it ends the container."""
    load = make_load(served, store)
    with load.running():
        wait_for(served, lambda: load.count()[200] >= 10)
        signalled = time.time()
        served.call("kill", "--signal", "TERM", served.name)
        code, last = served.wait_for_end(STOP_SECONDS)
    took = time.time() - signalled
    in_flight = sum(began < signalled < ended for began, ended, _ in load.answers)
    print(f"in flight at the signal: {in_flight}; before: {dict(load.count(before=signalled))}; "
          f"after: {dict(load.count(since=signalled))}; ended {took:.0f} s after it")  # fmt: skip
    assert in_flight > 0
    assert set(load.count(before=signalled)) == {200}
    assert (code, last["message"]) == (0, "ended with status 0")
    assert "door: drained, 0 requests left unanswered" in [line["message"] for line in served.log]
