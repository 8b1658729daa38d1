"""How a container ends: by a signal without cutting anything off, by a fault with its cause."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest

from tests.image.containers import Load, own_port, read_canary, start_container

LOAD_SECONDS = 12
STOP_SECONDS = 60


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
    """A store whose archive is not as it was built: its weights are rubbish."""
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


def test_a_damaged_archive_ends_it_with_the_cause(engine, tag, damaged):
    with start_container(
        engine, tag, "cpu-kit-test-damaged", own_port(), ["--store", str(damaged)]
    ) as container:
        code, last = container.wait_for_end()
        assert code == 1
        assert "not as it was built: model.safetensors has sha256" in last["cause"]
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
