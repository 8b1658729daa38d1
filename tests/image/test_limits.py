"""The plan is made for the limits of the container; what cannot be served ends it with the cause."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from server.throttling import find_loss, parse_stat
from server.verify.rows import SHARED_THROTTLED_MS
from tests.image.conftest import Container, Load, build, needs_two_cpus, serve, start

LOAD_SECONDS = 12


@needs_two_cpus
def test_a_cpuset_is_all_that_is_planned_with(engine, tag, store, photo):
    last = max(os.sched_getaffinity(0))
    with serve(engine, tag, store, f"--cpuset-cpus={last}", MODELS="resnet50") as container:
        assert container.read_json("plan.json")["layout"]["worker_cpus"]["value"] == [[last]]
        assert container.ask("/predictions/resnet50", photo)[0] == 200
        container.verify()


def read_throttled(container: Container) -> dict[str, dict[str, float]]:
    """Of the container's own control group, in version 1 or 2."""
    files = "/sys/fs/cgroup/cpu/cpu.stat /sys/fs/cgroup/cpu,cpuacct/cpu.stat /sys/fs/cgroup/cpu.stat"
    text = container.run_inside("sh", "-c", f"cat {files} 2>/dev/null", check=False)
    return {"container": parse_stat(text)}


@needs_two_cpus
def test_a_quota_of_one_cpu_plans_one_thread_and_binds_nothing(engine, tag, store, photo):
    with serve(engine, tag, store, "--cpus=1.0", MODELS="resnet50") as container:
        layout = container.read_json("plan.json")["layout"]
        assert (layout["workers_per_model"]["value"], layout["cores_per_worker"]["value"]) == (1, 1)
        assert layout["worker_cpus"]["value"] == [sorted(os.sched_getaffinity(0))]
        load = Load(container, photo, users=8)
        with load.running():
            before = read_throttled(container)
            time.sleep(LOAD_SECONDS)
            loss = find_loss(before, read_throttled(container))
        assert set(load.count()) == {200}
        assert loss.ms_per_period <= SHARED_THROTTLED_MS
        container.verify()


def test_with_the_capability_memory_is_bound(engine, tag, store):
    if subprocess.run(["numactl", "-m", "0", "true"], capture_output=True, check=False).returncode:
        pytest.skip("numactl -m does not work on this machine itself: its kernel has no NUMA")
    if 0 not in os.sched_getaffinity(0):
        pytest.skip("the launcher tries numactl on CPU 0, which these tests may not use")
    with serve(engine, tag, store, "--cap-add=SYS_NICE", MODELS="resnet50", WORKERS="1") as container:
        assert container.read_json("plan.json")["layout"]["memory_nodes"]["value"] == [[0]]
        container.verify()


@pytest.fixture
def damaged(store, tmp_path) -> Path:
    """A store whose archive is not as it was built: its weights are rubbish."""
    folder = tmp_path / "store"
    folder.mkdir()
    good, bad = zipfile.ZipFile(store / "resnet50.mar"), zipfile.ZipFile(folder / "resnet50.mar", "w")
    with good, bad:
        for name in good.namelist():
            bad.writestr(name, b"rubbish" if name.endswith(".safetensors") else good.read(name))
    for path in (tmp_path.parent, tmp_path, folder):
        path.chmod(0o755)
    return folder


def test_what_cannot_be_served_ends_it_with_the_cause(engine, tag, store, damaged, tmp_path):
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    (other / "resnet50.mar").write_bytes(b"not a zip")
    for code, folder, options, settings, cause in (
        (1, damaged, [], {}, "not as it was built: model.safetensors has sha256"),
        (1, other, [], {}, "not an archive of this kit"),
        (2, tmp_path, [], {}, "no archive in /model-store: got nothing"),
        (2, store, [], {"PROFILE": "fast"}, "PROFILE must be one of throughput, latency: got fast"),
        (2, store, ["--memory=3g"], {}, "not enough memory for one worker of each model"),
    ):
        with start(engine, tag, folder, *options, **settings) as container:
            got, log = container.wait_for_end()
            assert (got, cause in log) == (code, True), log[-3000:]


@pytest.mark.parametrize("backend", ["ipex", "openvino"])
def test_baked_in_archives_need_no_mount_and_no_user_of_the_image(engine, photo, tmp_path, backend):
    words = ["--build-arg", f"BACKEND={backend}", "--build-arg", "MODELS=resnet50"]
    baked = build(engine, f"cpu-kit:test-{backend}", *words, "--build-arg", "WEIGHTS=random")
    with serve(engine, baked, tmp_path, "--user=12345", WORKERS="1", PRECISION="int8") as container:
        assert container.ask("/predictions/resnet50", photo)[0] == 200
        container.verify()
        packages = container.run_inside("ls", "/opt/kit/.venv/lib/python3.11/site-packages")
        assert ("openvino" in packages) is (backend == "openvino")
        assert ("intel_extension_for_pytorch" in packages) is (backend == "ipex")
