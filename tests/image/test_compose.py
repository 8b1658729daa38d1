"""compose.yaml for real: the load test begins when the server is healthy, and ends well."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.image.conftest import ROOT, build
from tests.image.containers import own_port, write_secret

TOKEN = "a-token-made-for-the-tests"
COMPOSE = (["docker", "compose"], ["docker-compose"])


def find_compose() -> list[str]:
    for words in COMPOSE:
        if (
            shutil.which(words[0])
            and not subprocess.run([*words, "version"], capture_output=True, check=False).returncode
        ):
            return words
    pytest.skip("neither `docker compose` nor docker-compose is there")


def write_for_host_network(file: Path) -> None:
    """compose.yaml on the host's network, which every engine has; there no port can be published."""
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
    for service in compose["services"].values():
        service["network_mode"] = "host"
        service.pop("ports", None)
        service.pop("build")
    compose["services"]["server"]["environment"]["PORT"] = str(own_port())
    compose["services"]["server"]["restart"] = "no"
    command = compose["services"]["headless"]["command"]
    command[command.index("--host") + 1] = f"http://127.0.0.1:{own_port()}"
    file.write_text(yaml.safe_dump({name: value for name, value in compose.items() if name[:2] != "x-"}))


def test_the_load_test_starts_when_the_server_is_healthy_and_ends_well(engine, tag, store, tmp_path):
    compose = find_compose()
    token, file = write_secret(tmp_path, TOKEN), tmp_path / "compose.yaml"
    write_for_host_network(file)
    build("cpu-kit-loadtest:latest", engine, "--file", "docker/loadtest/Dockerfile")
    given = {
        "IMAGE": tag,
        "STORE": str(store),
        "MODELS": "resnet50",
        "FRONT": "haproxy",
        "TOKEN_FILE": str(token),
        "DURATION": "10s",
    }
    environment = {**os.environ, **given}
    words = [*compose, "-p", "cpu-kit-test", "-f", str(file), "--profile", "headless"]
    try:
        up = [*words, "up", "--exit-code-from", "headless", "server", "headless"]
        done = subprocess.run(up, env=environment, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        assert "Aggregated" in done.stdout
        print("\n".join(line for line in done.stdout.splitlines() if "Aggregated" in line))
    finally:
        down = [*words, "down", "--volumes", "--timeout", "60"]
        subprocess.run(down, env=environment, capture_output=True, check=False)
