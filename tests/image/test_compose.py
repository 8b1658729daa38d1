"""compose.yaml as it is: the load test begins when the server is healthy, and ends well."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.image.conftest import PORT, ROOT, build, write_secret


def test_the_load_test_starts_when_the_server_is_healthy_and_ends_well(engine, tag, store, tmp_path):
    words = [engine, "compose", "-p", "cpu-kit-test", "-f", "docker/compose.yaml"]
    override = tmp_path / "override.yaml"
    volumes = {"volumes": [f"{store}:/model-store:ro"]}
    secrets = {"token": {"file": str(write_secret(tmp_path))}}
    override.write_text(json.dumps({"services": {"server": volumes}, "secrets": secrets}))
    words += ["-f", str(override), "--profile", "headless"]
    if subprocess.run([*words, "version"], capture_output=True, check=False).returncode:
        pytest.skip(f"`{engine} compose` is not there")
    build(engine, "cpu-kit-loadtest:latest", "--file", "docker/loadtest/Dockerfile")
    given = {"CPU_KIT_IMAGE": tag, "KIT_PORT": str(PORT)}
    environment = {**os.environ, **given, "KIT_MODELS": "resnet50", "KIT_DURATION": "10"}
    try:
        up = [*words, "up", "--exit-code-from", "headless", "server", "headless"]
        done = subprocess.run(
            up, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
        assert "Aggregated" in done.stdout
    finally:
        down = [*words, "down", "--volumes", "--timeout", "60"]
        subprocess.run(down, cwd=ROOT, env=environment, capture_output=True, check=False)
