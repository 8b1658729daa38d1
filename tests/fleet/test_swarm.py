"""deploy/swarm on three hosts of this machine: an update under load, a bad archive, a host that is lost.

The containers have this machine's files instead of an image: what is tested is the stack, its edge, and how a
server starts, drains and fails. One of two servers is away while it is replaced: the load is 80 % of what is
is left.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from models.build import build_archive
from tests.conftest import RANDOM, TINY_IMAGE, write_definition
from tests.docs.pages import ROOT
from tests.fleet.swarm import HUB, NET, NET6, Swarm, find_lack, make_swarm, run, wait_for

MODEL, TOKEN = "tiny_image", "a-token-of-the-test"
STACK = ROOT / "deploy/swarm/stack.yaml"
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc")
USER = "12345:12345"
"""One without a name."""
COLD_S = 300.0
"""A server starts within, also on a busy machine."""
URL = f"http://{NET}.1:8090/predictions/{MODEL}"


@dataclass
class Fleet:
    swarm: Swarm
    override: Path
    body: Path
    good: Path
    cold_s: float = 0.0
    rate: float = 0.0

    def deploy(self, tag: str, store: Path | None = None) -> None:
        names = {
            "CPU_KIT_IMAGE": f"cpu-kit:{tag}",
            "EDGE_IMAGE": "cpu-kit:v1",
            "KIT_MODELS": MODEL,
            "KIT_CPUS": "1",
            "KIT_MEMORY": "6G",
        }
        self.swarm.deploy([STACK, self.override], STORE=str(store or self.good), **names)

    def load(self, rate: float, seconds: float) -> subprocess.Popen[str]:
        command = [
            "nsenter",
            f"--net=/run/netns/{HUB}",
            sys.executable,
            str(Path(__file__).parent / "load.py"),
        ]
        words = [URL, TOKEN, str(self.body), str(rate), str(seconds)]
        return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)

    def wait_update(self, wanted: str) -> None:
        def look() -> bool:
            state = self.swarm.read_update()
            assert state == wanted or not state.endswith(("completed", "paused")), state
            return state == wanted

        wait_for(look, 2 * COLD_S, self.swarm.list_tasks)


def read_load(load: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = load.communicate(timeout=600)
    return dict(json.loads(output))


def write_override(folder: Path) -> Path:
    """The host's files in place of an image's."""
    home = Path(sys.base_prefix)
    kept = [one for one in SYSTEM if Path(one).exists()]
    mounts = [f"{one}:{one}:ro" for one in (*kept, str(home), str(Path(sys.executable).parents[1]))]
    kit = [f"{ROOT}:/opt/kit:ro", "${STORE}:/model-store:ro"]
    server = {
        "user": USER,
        "working_dir": "/opt/kit",
        "entrypoint": ["tini", "--", "/opt/kit/.venv/bin/python", "-m", "docker.entrypoint"],
        "environment": {
            "PATH": os.environ["PATH"],
            "HOME": "/run/kit",
            "USER": "kit",
            "PYTHONUNBUFFERED": "1",
        },
        "volumes": [*dict.fromkeys(mounts), *kit],
        "secrets": [{"source": "cpu-kit-token", "target": "token", "uid": USER.split(":")[0], "mode": 0o400}],
    }
    edge = {"user": USER, "environment": {"PATH": os.environ["PATH"]}, "volumes": [*dict.fromkeys(mounts)]}
    file = folder / "override.yaml"
    file.write_text(yaml.safe_dump({"version": "3.9", "services": {"server": server, "edge": edge}}))
    return file


def make_image() -> bytes:
    """Of folders alone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("run/secrets", "run/kit", "opt/kit", "model-store", "tmp", "proc", "sys", "dev", *(
            one.strip("/") for one in SYSTEM)):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in ("tmp", "run/kit") else 0o755
            archive.addfile(entry)
    return packed.getvalue()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if lack := find_lack():
        pytest.skip(lack)
    folder = tmp_path_factory.mktemp("swarm")
    build_archive(write_definition(folder / "models", TINY_IMAGE), RANDOM, store=folder / "store")
    (folder / "bad").mkdir()
    content = (folder / "store" / f"{MODEL}.mar").read_bytes()
    (folder / "bad" / f"{MODEL}.mar").write_bytes(content[: len(content) // 2])
    noise = np.random.default_rng(0).integers(0, 256, (310, 310, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "body.png")
    assert 280 << 10 < (folder / "body.png").stat().st_size <= 300 << 10
    (folder / "image.tar").write_bytes(make_image())
    (folder / "token").write_text(TOKEN)
    cpus = sorted(os.sched_getaffinity(0))
    own = {1: f"{cpus[0]},{cpus[-1]}", 2: str(cpus[0]), 3: str(cpus[-1])}
    with make_swarm(Path("/var/tmp") / f"kit-fleet-{os.getpid()}", own) as swarm:
        for host in swarm.hosts:
            for tag in ("v1", "v2"):
                host.docker("import", folder / "image.tar", f"cpu-kit:{tag}")
        manager = swarm.manager
        manager.docker("secret", "create", "cpu-kit-token", folder / "token")
        for host in swarm.hosts[1:]:
            manager.docker("node", "update", "--label-add", "cpu-kit=true", host.name)
        one = Fleet(
            swarm=swarm, override=write_override(folder), body=folder / "body.png", good=folder / "store"
        )
        began = time.monotonic()
        one.deploy("v1")
        wait_for(lambda: swarm.find_serving() == {"node2", "node3"}, COLD_S, swarm.list_tasks)
        one.cold_s = time.monotonic() - began
        whole = read_load(one.load(0, 15))
        assert whole["statuses"].keys() == {"200"}, whole
        # Of two servers, of which one is left.
        one.rate = 0.8 * whole["statuses"]["200"] / whole["seconds"] / 2
        print(f"cold start {one.cold_s:.0f} s, load {one.rate:.1f} requests/s")
        yield one


def assert_all_answered(load: dict[str, Any]) -> None:
    assert load["statuses"].keys() == {"200"}, load
    assert load["statuses"]["200"] > 100


def ask(url: str) -> str:
    return run("nsenter", f"--net=/run/netns/{HUB}", "curl", "-sfg", "--noproxy", "*", url)


@pytest.mark.parametrize("address", [f"{NET}.2", f"[{NET6}:2]"])
def test_a_server_is_reached_by_both_families(fleet, address):
    assert ask(f"http://{address}:8080/ready")
    assert "cpukit_load" in ask(f"http://{address}:8082/metrics")


def test_its_log_is_json(fleet):
    host = fleet.swarm.hosts[1]
    lines = host.docker("logs", host.docker("ps", "-q").split()[0]).splitlines()
    assert len(lines) > 5
    assert all({"level", "message"} <= json.loads(line).keys() for line in lines)


def test_an_update_loses_no_request(fleet):
    load = fleet.load(fleet.rate, 2 * fleet.cold_s + 40)
    time.sleep(2)
    fleet.deploy("v2")
    fleet.wait_update("completed")
    assert_all_answered(read_load(load))
    images = fleet.swarm.manager.docker(
        "service", "inspect", "kit_server", "--format", "{{.Spec.TaskTemplate.ContainerSpec.Image}}"
    )
    assert images.strip() == "cpu-kit:v2"


def test_a_bad_archive_rolls_back_by_itself(fleet, tmp_path):
    load = fleet.load(fleet.rate, 2 * fleet.cold_s + 60)
    time.sleep(2)
    fleet.deploy("v1", fleet.good.parent / "bad")
    fleet.wait_update("rollback_completed")
    assert_all_answered(read_load(load))
    assert fleet.swarm.find_serving() == {"node2", "node3"}


def test_a_host_that_is_lost_costs_no_request_and_another_takes_its_place(fleet):
    manager, lost = fleet.swarm.manager, fleet.swarm.hosts[2]
    manager.docker("node", "update", "--label-add", "cpu-kit=true", manager.name)
    load = fleet.load(fleet.rate, 1.5 * fleet.cold_s + 30)
    time.sleep(5)
    began = time.monotonic()
    lost.cut()
    lost.kill()
    with contextlib.suppress(AssertionError):
        wait_for(lambda: fleet.swarm.find_serving() == {"node1", "node2"}, 2 * COLD_S, fleet.swarm.list_tasks)
    back_s = time.monotonic() - began
    print(f"back after {back_s:.0f} s, a cold start took {fleet.cold_s:.0f} s")
    assert_all_answered(read_load(load))
    assert fleet.swarm.find_serving() == {"node1", "node2"}
    assert back_s <= 1.5 * fleet.cold_s + 10  # until the manager misses the host
    assert ask(f"http://{NET}.1:8080/ready")
