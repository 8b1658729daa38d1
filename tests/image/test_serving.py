"""The built image serves with no more than it needs; a dead worker, a reload and the end cost no request."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.image.conftest import NAME, PORT, TOKEN, Container, Load, needs_two_cpus, serve, write_secret

LARGEST = 1_800_000_000
"""With the CPU-only wheels: half of it is torch and its default backend, a fifth Java and Debian."""
NO_RIGHTS = {"CapEff:": {"0" * 16}, "CapBnd:": {"0" * 16}, "NoNewPrivs:": {"1"}, "Seccomp:": {"2"}}


@pytest.fixture(scope="module")
def served(engine, tag, store, tmp_path_factory) -> Iterator[Container]:
    """Both models, with a token of our own; two instances, so that one can answer while the other cannot."""
    secret = f"--volume={write_secret(tmp_path_factory.mktemp('secret'))}:/run/secrets/token:ro"
    with serve(engine, tag, store, secret, INSTANCES=str(min(2, os.cpu_count() or 1))) as container:
        yield container


def test_both_models_answer_and_verify_finds_everything_as_planned(served, photo):
    status, body = served.ask("/predictions/resnet50", photo, TOKEN)
    assert (status, len(json.loads(body))) == (200, 5)
    status, body = served.ask("/predictions/bert", b"a fine day", TOKEN, "text/plain")
    assert (status, set(json.loads(body)["probabilities"])) == (200, {"negative", "positive"})
    served.verify()


def test_only_the_token_of_the_file_opens_it_and_the_log_does_not_tell_it(served, photo):
    wrong = "another-token-of-length"
    assert [served.ask(path, None, wrong)[0] for path in ("/ready", "/live")] == [200, 200]
    assert served.ask("/predictions/resnet50", photo, wrong)[0] == 401
    assert '-H "Authorization: Bearer $TOKEN"' in served.run_inside("kit", "status")
    assert TOKEN not in served.log


def test_it_has_no_rights_one_folder_to_write_to_and_one_port(served):
    fields = [line.split() for line in served.run_inside("sh", "-c", "cat /proc/[0-9]*/status").splitlines()]
    assert {key: {rest[0] for name, *rest in fields if name == key} for key in NO_RIGHTS} == NO_RIGHTS
    assert served.run_inside("id", "-u").strip() == "10001"
    for folder in ("/", "/tmp", "/opt/kit", "/model-store", "/etc", "/dev"):
        assert "yes" not in served.run_inside("sh", "-c", f"touch {folder}/x && echo yes", check=False)
    # The network is the machine's: of its own range.
    table = served.run_inside("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6").splitlines()
    places = [line.split()[1].rsplit(":", 1) for line in table if line.split()[3:4] == ["0A"]]
    beyond_loopback = {int(port, 16) for host, port in places if int(host, 16) == 0}
    assert beyond_loopback & {*range(PORT, PORT + 100)} == {PORT}


def test_the_size_is_within_its_limit(tag, served):
    if "nvidia" in served.run_inside("ls", "/opt/kit/.venv/lib/python3.11/site-packages"):
        pytest.skip("it holds the CUDA build of torch, which is all that could be had")
    assert int(served.call("image", "inspect", "--format", "{{.Size}}", tag)) <= LARGEST


def test_without_the_capability_memory_is_not_bound_and_that_is_said(served):
    nodes = served.read_json("plan.json")["layout"]["memory_nodes"]
    assert set(map(str, nodes["value"])) == {"None"}
    assert f"memory: {nodes['reason']}" in served.log


@needs_two_cpus
def test_a_worker_that_is_killed_costs_no_request(served, photo):
    looks = served.read_json("instances/a1/looks.json")
    worker = min(pid for look in looks.values() for pid in look["ready"])
    load = Load(served, photo)
    with load.running():
        served.run_inside("sh", "-c", f"kill -KILL {worker}")
        served.wait_for(lambda: served.phase == "degraded")
        served.wait_for(lambda: served.phase == "ready")
    assert set(load.count()) == {200}
    served.verify()


@needs_two_cpus
def test_a_reload_inside_costs_no_request(served, photo):
    load = Load(served, photo)
    with load.running():
        said = served.call("exec", "--env", "KIT_DEADLINE_MS=30000", NAME, "kit", "reload")
    assert "reload: done" in said
    assert set(load.count()) == {200}
    assert served.read_json("plan.json")["inputs"]["deadline_ms"] == 30_000
    assert "/instances/b1/logs/ts_log.log <==" in served.log
    served.wait_for(lambda: served.phase == "ready")
    served.verify()


def test_a_signal_in_mid_load_cuts_nothing_off(served, photo):
    """The last one: it ends the container."""
    load = Load(served, photo)
    with load.running():
        signalled = time.time()
        served.call("kill", "--signal", "TERM", NAME)
        code, log = served.wait_for_end()
    in_flight = sum(began < signalled < ended for began, ended, _ in load.answers)
    assert in_flight > 0
    assert set(load.count(before=signalled)) == {200}
    assert (code, "drained, 0 requests left unanswered" in log) == (0, True)
