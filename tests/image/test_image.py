"""The built image under limits and faults: planned for them, verified inside them, ended with the cause."""

from __future__ import annotations

import json
import os
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.conftest import BAKED_TAG, build
from tests.image.containers import Container, Load, own_port, read_canary, read_throttled, start_container

TOKEN = "a-token-made-for-the-tests"
LOAD_SECONDS = 12
STOP_SECONDS = 60
needs_two_cpus = pytest.mark.skipif(
    (os.cpu_count() or 1) < 2, reason="this machine has one CPU: nothing to share out"
)


@pytest.fixture(scope="module")
def both(engine, tag, store, tmp_path_factory) -> Iterator[Container]:
    """Both models, with a token of our own."""
    token = tmp_path_factory.mktemp("secret") / "token"
    token.write_text(TOKEN)
    for folder in (token, token.parent, token.parent.parent):
        folder.chmod(0o755)
    arguments = ["--store", str(store), "--token-file", str(token)]
    with start_container(engine, tag, "cpu-kit-test-both", own_port(), arguments) as container:
        container.wait_until_healthy()
        yield container


def test_the_size_is_said_and_within_its_limit(built):
    assert "at most 1.80 GB" in built
    print(built)


def test_both_models_answer(both, store):
    status, body = both.predict("resnet50", read_canary(store), TOKEN)
    assert (status, len(json.loads(body))) == (200, 5)
    status, body = both.predict("bert", b"a fine day", TOKEN, "text/plain")
    assert (status, set(json.loads(body)["probabilities"])) == (200, {"negative", "positive"})


def test_verify_inside_finds_everything_as_planned(both):
    assert "verify: all " in both.run_inside("kit", "verify")


def test_only_the_token_of_the_file_opens_it_and_the_log_does_not_tell_it(both, store):
    assert both.predict("resnet50", read_canary(store), "another-token")[0] == 400
    assert both.read_token() == "$TOKEN"
    assert TOKEN not in both.call("logs", both.name)


def test_it_is_not_root_and_has_no_rights(both):
    assert both.run_inside("id", "-u").strip() == "10001"
    processes = both.run_inside("sh", "-c", "cat /proc/[0-9]*/status")
    fields = [line.split() for line in processes.splitlines()]
    values = {
        name: {rest[0] for first, *rest in fields if first == name}
        for name in ("CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Uid:")
    }
    none = {"0" * 16}
    assert values == {
        "CapEff:": none, "CapBnd:": none, "NoNewPrivs:": {"1"}, "Seccomp:": {"2"}, "Uid:": {"10001"},
    }  # fmt: skip


def test_only_its_own_folder_can_be_written(both):
    assert both.run_inside("sh", "-c", "touch /run/kit/x && echo yes").strip() == "yes"
    for folder in ("/", "/tmp", "/opt/kit", "/model-store", "/etc", "/dev"):
        assert not both.run_inside("sh", "-c", f"touch {folder}/x 2>/dev/null && echo yes", check=False)


def test_only_predictions_are_served_beyond_loopback(both):
    table = both.run_inside("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
    listening = {line.split()[1] for line in table.splitlines() if line.split()[3:4] == ["0A"]}
    ports = {int(entry.rsplit(":", 1)[1], 16): entry.rsplit(":", 1)[0] for entry in listening}
    anywhere = {
        port for port, host in ports.items() if int(host, 16) == 0 and both.port <= port < both.port + 5
    }
    assert set(range(both.port, both.port + 5)) <= set(ports)
    assert anywhere == {both.port}


def test_without_the_capability_memory_is_not_bound_and_that_is_said(both):
    nodes = both.plan["layout"]["memory_nodes"]
    assert set(map(str, nodes["value"])) == {"None"}
    assert "CAP_SYS_NICE" in nodes["reason"]


@needs_two_cpus
def test_a_cpuset_is_all_that_is_planned_with(engine, tag, store):
    last = max(os.sched_getaffinity(0))
    arguments = ["--store", str(store), "--models", "resnet50", "--cpuset", str(last)]
    with start_container(engine, tag, "cpu-kit-test-cpuset", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.plan["layout"]["worker_cpus"]["value"] == [[last]]
        assert "verify: all " in container.run_inside("kit", "verify")
        token = container.read_token()  # made by TorchServe, found in the log
        assert container.predict("resnet50", read_canary(store), token)[0] == 200


@needs_two_cpus
def test_a_quota_of_one_cpu_plans_one_thread_and_is_never_overdrawn(engine, tag, store):
    arguments = ["--store", str(store), "--models", "resnet50", "--cpus", "1.0"]
    # The engine's own start of a health check takes some 20 ms of CPU from the container's quota.
    with start_container(
        engine, tag, "cpu-kit-test-quota", own_port(), arguments, ["--health-interval=10m"]
    ) as container:
        container.wait_until_healthy()
        layout = container.plan["layout"]
        assert (layout["workers_per_model"]["value"], layout["cores_per_worker"]["value"]) == (1, 1)
        time.sleep(2)
        before = read_throttled(container)
        load = Load(
            container=container, model="resnet50", body=read_canary(store), token=container.read_token()
        )
        with load.running():
            time.sleep(LOAD_SECONDS)
        time.sleep(1)
        print(f"{load.count()[200]} answers, throttled {read_throttled(container) - before} times under load")
        assert set(load.count()) == {200}
        assert read_throttled(container) == before


def test_too_little_memory_for_both_models_is_refused_with_the_sums(engine, tag, store):
    arguments = ["--store", str(store), "--memory", "3g"]
    with start_container(engine, tag, "cpu-kit-test-refused", own_port(), arguments) as container:
        code, last = container.wait_for_end()
        assert code == 2
        assert last["cause"].startswith(
            "config: not enough memory for one worker of each model (bert, resnet50"
        )
        assert "there are 3072 MiB" in last["cause"]


def test_what_fits_into_three_gib_serves_and_a_signal_in_mid_load_cuts_nothing_off(engine, tag, store):
    arguments = ["--store", str(store), "--models", "resnet50", "--memory", "3g"]
    with start_container(engine, tag, "cpu-kit-test-memory", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.plan["layout"]["workers_per_model"]["value"] == 1
        load = Load(
            container=container,
            model="resnet50",
            body=read_canary(store),
            token=container.read_token(),
            users=16,
        )
        with load.running():
            time.sleep(LOAD_SECONDS)
            assert container.inspect("{{.State.OOMKilled}}") == "false"
            signalled = time.time()
            container.call("kill", "--signal", "TERM", container.name)
            code, last = container.wait_for_end(STOP_SECONDS)
        in_flight = sum(began < signalled < ended for began, ended, _ in load.answers)
        took = time.time() - signalled
        print(f"in flight at the signal: {in_flight}; before: {load.count(before=signalled)}; "
              f"after: {load.count(since=signalled)}; ended {took:.0f} s after it")  # fmt: skip
        assert in_flight > 0
        assert set(load.count(before=signalled)) == {200}
        assert (code, last["message"]) == (0, "ended with status 0")
        assert took < STOP_SECONDS


@pytest.fixture
def damaged(store, tmp_path) -> Path:
    """A store whose archive cannot be loaded by a worker: its weights are rubbish."""
    folder = tmp_path / "store"
    folder.mkdir()
    with (
        zipfile.ZipFile(store / "resnet50.mar") as good,
        zipfile.ZipFile(folder / "resnet50.mar", "w") as bad,
    ):
        for name in good.namelist():
            bad.writestr(name, b"rubbish" if name.endswith(".safetensors") else good.read(name))
    for path in (tmp_path.parent, tmp_path, folder):
        path.chmod(0o755)
    return folder


def test_an_archive_that_cannot_load_ends_it_with_the_cause(engine, tag, damaged):
    with start_container(
        engine, tag, "cpu-kit-test-damaged", own_port(), ["--store", str(damaged)]
    ) as container:
        code, last = container.wait_for_end()
        assert code == 1
        assert last["cause"].startswith("resnet50: ")
        print(last["cause"])


def test_a_file_that_is_no_archive_ends_it_with_the_cause(engine, tag, damaged):
    (damaged / "resnet50.mar").write_bytes(b"not a zip")
    with start_container(
        engine, tag, "cpu-kit-test-no-zip", own_port(), ["--store", str(damaged)]
    ) as container:
        code, last = container.wait_for_end(60)
        assert code == 1
        assert "not an archive of this kit" in last["cause"]


def test_without_archives_it_says_how_to_bring_them(engine, tag, tmp_path):
    with start_container(
        engine, tag, "cpu-kit-test-empty", own_port(), ["--store", str(tmp_path)]
    ) as container:
        code, last = container.wait_for_end(60)
        assert (code, last["cause"][:38]) == (2, "no archive in /model-store: got nothin")


def test_a_wrong_knob_is_answered_with_the_allowed_ones(engine, tag, store):
    arguments = ["--store", str(store), "--profile", "fast"]
    with start_container(engine, tag, "cpu-kit-test-knob", own_port(), arguments) as container:
        code, last = container.wait_for_end(60)
        assert (code, "PROFILE must be one of throughput, latency: got fast" in last["cause"]) == (2, True)


def test_with_the_capability_memory_is_bound(engine, tag, store):
    if subprocess.run(["numactl", "-m", "0", "true"], capture_output=True, check=False).returncode:
        pytest.skip("numactl -m does not work on this machine itself: its kernel has no NUMA")
    arguments = ["--store", str(store), "--models", "resnet50", "--workers", "1", "--bind-memory", "1"]
    with start_container(engine, tag, "cpu-kit-test-nice", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.plan["layout"]["memory_nodes"]["value"] == [[0]]
        assert "verify: all " in container.run_inside("kit", "verify")


def test_archives_baked_in_need_no_mount(builder, engine, tag, store, tmp_path):
    """Built from the same layers: only the archive is new."""
    print(build(BAKED_TAG, builder, "--models", "resnet50", "--weights", "random"))
    arguments = ["--store", str(tmp_path), "--workers", "1"]
    with start_container(engine, BAKED_TAG, "cpu-kit-test-baked", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.predict("resnet50", read_canary(store), container.read_token())[0] == 200
