"""The built image, archives, and why there may be none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docker.image.engines import Engine, ImageError, find_engine

ROOT = Path(__file__).parents[2]
TAG = "cpu-kit:test"
BAKED_TAG = "cpu-kit:test-baked"
STORE = ROOT / "run" / "test-store"


@pytest.fixture(scope="session")
def builder() -> Engine:
    """An engine that builds."""
    try:
        return find_engine(os.environ.get("KIT_ENGINE", ""))
    except ImageError as problem:
        pytest.skip(str(problem))


@pytest.fixture(scope="session")
def engine(builder: Engine) -> Engine:
    """An engine that runs containers too."""
    if not builder.can_run:
        pytest.skip(
            f"{builder.name} builds images but sets no limits on what it runs: install podman or docker"
        )
    return builder


def build(tag: str, engine: Engine, *arguments: str) -> str:
    """`make image`; what it printed last."""
    given = {
        "--network": os.environ.get("KIT_NETWORK"),
        "--ca-file": os.environ.get("KIT_CA_FILE"),
        "--torch-index": os.environ.get("KIT_TORCH_INDEX"),
    }
    options = [word for option, value in given.items() if value for word in (option, value)]
    command = [sys.executable, "-m", "docker.image", "build", "--engine", engine.name, "--tag", tag]
    done = subprocess.run(
        [*command, *options, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def built(builder: Engine) -> str:
    """The line about the built image's size."""
    return build(TAG, builder)


@pytest.fixture(scope="session")
def tag(built: str) -> str:
    """The built image."""
    return TAG


@pytest.fixture(scope="session")
def store(engine: Engine) -> Path:
    """ResNet50 and BERT as shipped, with random weights; KIT_STORE names others."""
    if os.environ.get("KIT_STORE"):
        return Path(os.environ["KIT_STORE"]).resolve()
    command = [sys.executable, "-m", "models", "build", "--models", "resnet50 bert", "--weights", "random"]
    command += ["--precision", "auto"]
    subprocess.run([*command, "--store", str(STORE)], cwd=ROOT, check=True, timeout=900)
    return STORE
