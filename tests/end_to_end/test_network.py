"""A server that other machines reach: seen from another network namespace, which stands for one of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.kit import Kit, find_port, running

SERVER, CLIENT, SPACE = "10.213.71.1", "10.213.71.2", f"kit-{os.getpid()}"
TEXT = "tiny_text"
ASK = """
import json, ssl, sys, urllib.request
host, port, metrics, token, certificate = sys.argv[1:]
context = ssl.create_default_context(cafile=certificate)
def ask(url, body=None, **headers):
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()[:2000]
    except urllib.error.HTTPError as error:
        return error.code, ""
base = f"https://{host}:{port}"
body = b'{"text": "a fine day"}'
found = {
    "predict": ask(f"{base}/predictions/tiny_text", body, Authorization=f"Bearer {token}")[0],
    "no token": ask(f"{base}/predictions/tiny_text", body)[0],
    "ready": ask(f"{base}/ready")[0],
    "metrics": ask(f"http://{host}:{metrics}/metrics"),
}
print(json.dumps(found))
"""
SCAN = """
import json, socket, sys
found = []
for one in range(1, 65536):
    with socket.socket() as link:
        link.settimeout(2)
        if link.connect_ex((sys.argv[1], one)) == 0:
            found.append(one)
print(json.dumps(found))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def space() -> Iterator[str]:
    """Joined to this one by a pair of interfaces."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("netns", "add", SPACE)
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"no network namespace can be made: {problem.stderr.strip()}")
    name = f"kit{os.getpid() % 10_000}"
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "outside", "netns", SPACE)
        ip("addr", "add", f"{SERVER}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", SPACE, "addr", "add", f"{CLIENT}/30", "dev", "outside")
        ip("-n", SPACE, "link", "set", "outside", "up")
        yield SPACE
    finally:
        ip("netns", "del", SPACE)


def run_outside(space: str, script: str, *words: str) -> Any:
    command = ["ip", "netns", "exec", space, sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_other_machines_reach_what_was_opened_and_nothing_else(space, tmp_path, tiny_store):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=kit",
         "-addext", f"subjectAltName=IP:{SERVER}", "-keyout", key, "-out", certificate],
        capture_output=True, check=True,
    )  # fmt: skip
    port = find_port()
    kit = Kit(run_dir=tmp_path / "run", store=tiny_store, port=port)
    kit.plan(TEXT, HOST=SERVER, METRICS=f"{SERVER}:{port + 1}", TLS_CERT=certificate, TLS_KEY=key)
    before = {*run_outside(space, SCAN, SERVER)}
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        found = run_outside(space, ASK, SERVER, str(port), str(port + 1), kit.token, str(certificate))
        assert (found["predict"], found["no token"], found["ready"]) == (200, 401, 200)
        assert found["metrics"][0] == 200
        assert {*run_outside(space, SCAN, SERVER)} - before == {port, port + 1}
        status = kit.call("server", "status").stdout
        assert "INSECURE" not in status
        assert f"{SERVER}:{port + 1} metrics" in status
        assert "other machines read the metrics" in status
