"""What docker/ ships as files: Dockerfiles, compose.yaml, the health check, the agent's manifest."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from config.planning.models import LOAD_S
from config.proxy import ProxyFiles
from config.settings import FIELDS, PUBLIC, about
from server.processes import GRACEFUL_SECONDS
from server.ready import EXTRA_SECONDS
from setup.doctor import NEEDS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = ("docker/Dockerfile", "docker/loadtest/Dockerfile")
COMPOSE = ROOT / "docker/compose.yaml"


def read_final_stage(file: str) -> list[str]:
    """Instructions of the last stage, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / file).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    return lines[last:]


@pytest.mark.parametrize("file", DOCKERFILES)
def test_hadolint_finds_nothing(file):
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed: make dev (x86-64 only)")
    done = subprocess.run([hadolint, "--no-color", ROOT / file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", DOCKERFILES)
def test_the_shipped_stage_is_no_root_and_brings_no_tools(file):
    stage = read_final_stage(file)
    assert "USER 10001:10001" in stage
    assert any(line.startswith('ENTRYPOINT ["/usr/bin/tini"') for line in stage)
    assert not [line for line in stage if re.search(r"\b(gcc|g\+\+|make|jdk|pip|curl|venv )\b", line)]


NOT_SHIPPED = {"javac", "ApacheBench", "curl", "Python's venv"}
"""Of the set-up's needs, what builds or measures."""
COMES_OTHERWISE = {"Java 17 or newer": "openjdk-17-jre-headless", "lscpu": ""}
"""By a smaller package, and with Debian itself."""


def test_what_a_server_needs_of_the_distribution_is_shipped():
    stage = (ROOT / "docker/Dockerfile").read_text().split("FROM ${BASE} AS system")[1].split("FROM ")[0]
    for what, (packages, _) in NEEDS.items():
        if what not in NOT_SHIPPED:
            package = COMES_OTHERWISE.get(what, packages)
            assert not package or re.search(rf"\s{re.escape(package)}\s", stage), what


def test_every_folder_that_is_copied_is_in_the_build_context():
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    for file in DOCKERFILES:
        for line in (ROOT / file).read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert source.split("/")[0] in allowed, line


@pytest.fixture(scope="module")
def services() -> dict:
    return yaml.safe_load(COMPOSE.read_text())["services"]


@pytest.mark.parametrize("name", ["server", "loadtest", "headless"])
def test_every_service_is_hardened_and_limited(services, name):
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "mem_limit", "pids_limit"} <= set(service)
    assert service["secrets"] == ["token"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert service.get("restart", "on-failure") == "on-failure"  # a number of tries would count for ever


def test_the_time_to_stop_is_longer_than_the_servers_own(services):
    # server/processes.py: launchers and workers after TorchServe
    assert int(services["server"]["stop_grace_period"].rstrip("s")) >= GRACEFUL_SECONDS + 10


def test_compose_understands_it():
    for words in (["docker", "compose"], ["docker-compose"], ["podman-compose"]):
        version = [*words, "version"]
        if (
            shutil.which(words[0])
            and not subprocess.run(version, capture_output=True, check=False).returncode
        ):
            break
    else:
        pytest.skip("no compose is installed (docker compose, docker-compose or podman-compose)")
    command = [*words, "-f", str(COMPOSE), "--profile", "headless", "config"]
    environment = {**os.environ, "KIT_MODELS": "bert"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == {"server", "loadtest", "headless"}
    assert yaml.safe_load(done.stdout)["services"]["server"]["environment"]["KIT_MODELS"] == "bert"


def check_health(folder: Path) -> tuple[int, str]:
    words = ["sh", ROOT / "docker/health.sh", folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(("status", "code"), [("200 OK", 0), ("503 Service Unavailable", 1)])
def test_the_health_check_asks_the_supervisor(tmp_path, status, code):
    answer = f"HTTP/1.1 {status}\r\nContent-Length: 12\r\n\r\n".encode() + b'{"ready": 1}'
    path = Path(ProxyFiles.of(tmp_path).supervisor_socket)
    path.parent.mkdir()
    asked = []
    with socket.create_server(str(path), family=socket.AF_UNIX) as listening:

        def reply() -> None:
            connection, _ = listening.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        assert check_health(tmp_path) == (code, '{"ready": 1}')
        thread.join()
    assert asked[0].startswith(b"GET /ready HTTP/")


def test_a_server_that_nobody_supervises_is_not_healthy(tmp_path):
    code, said = check_health(tmp_path)
    assert (code, said.partition(":")[0]) == (1, "not ready")


def test_compose_hands_on_the_settings_that_plan(services):
    given = services["server"]["environment"]
    planning = {
        name for name in PUBLIC if about(FIELDS[name])["group"] in ("serving", "requests", "libraries")
    }
    assert given == {f"KIT_{name}": f"${{KIT_{name}:-}}" for name in planning - {"PORT"} | {"LOG"}}
    used = set(re.findall(r"\$\{KIT_(\w+):-", COMPOSE.read_text()))
    assert used <= {*PUBLIC}


def test_the_health_check_waits_as_long_as_a_start_may_take():
    """Else `depends_on: healthy` gives up on a server that is still loading as planned."""
    check = next(line for line in read_final_stage("docker/Dockerfile") if line.startswith("HEALTHCHECK"))
    seconds = int(re.search(r"--start-period=(\d+)s", check)[1])
    assert seconds >= LOAD_S * len(list((ROOT / "models").glob("*/model.yaml"))) + EXTRA_SECONDS
