"""compose.yaml for real: the load test begins when the server is healthy, and ends well."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.image.conftest import ROOT, build
from tests.image.containers import own_port

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


def test_compose_starts_the_load_test_when_the_server_is_healthy(engine, tag, store, tmp_path):
    """The headless profile, on the host's network, which every engine has."""
    compose = find_compose()
    token = tmp_path / "token"
    token.write_text(TOKEN)
    for path in (tmp_path.parent, tmp_path, token):
        path.chmod(0o755)
    override = tmp_path / "host.yaml"
    override.write_text(
        "services:\n"
        f"  server: {{network_mode: host, environment: {{PORT: '{own_port()}'}}, restart: 'no'}}\n"
        f"  headless: {{network_mode: host, command: [--host, 'http://127.0.0.1:{own_port()}', --headless,"
        " --only-summary, --users, '8', --spawn-rate, '8', --run-time, 10s]}\n"
    )
    given = {"IMAGE": tag, "STORE": str(store), "MODELS": "resnet50", "TOKEN_FILE": str(token)}
    environment = {**os.environ, **given}
    build("cpu-kit-loadtest:latest", engine, "--file", "docker/loadtest/Dockerfile")
    words = [*compose, "-p", "cpu-kit-test", "-f", str(ROOT / "docker/compose.yaml"), "-f", str(override)]
    try:
        up = [*words, "--profile", "headless", "up", "--exit-code-from", "headless", "server", "headless"]
        done = subprocess.run(up, env=environment, capture_output=True, text=True, timeout=600, check=False)
        print("\n".join(line for line in done.stdout.splitlines() if "Aggregated" in line))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        assert "Aggregated" in done.stdout
    finally:
        down = [*words, "--profile", "headless", "down", "--volumes", "--timeout", "60"]
        subprocess.run(down, env=environment, capture_output=True, check=False)
