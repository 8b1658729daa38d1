"""The second package set, from a build to answers over REST: run by `make test-current`."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handlers.backends.catalogue import DEFAULT_SET, find_set
from tests.end_to_end.conftest import STORE
from tests.end_to_end.kit import ROOT, Kit, find_port, running

pytestmark = pytest.mark.skipif(find_set() == DEFAULT_SET, reason="another environment's: make test-current")


@pytest.fixture(scope="module")
def archive() -> Path:
    """ResNet50 as shipped, with random weights; kept between test runs."""
    command = [sys.executable, "-m", "models", "build", "MODELS=resnet50", "WEIGHTS=random", "PRECISION=int8"]
    command.append(f"MODEL_STORE={STORE}")
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return STORE / "resnet50.mar"


@pytest.fixture(scope="module")
def served(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """By the backend that nobody named, in one worker: all cores are its own, and it must use them."""
    kit = Kit(run_dir=tmp_path_factory.mktemp("serve"), store=archive.parent, port=find_port())
    kit.plan("resnet50", PRECISION="int8", WORKERS=1)
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit


def test_openvino_serves_int8_with_the_newer_torch(served: Kit, archive: Path):
    described = served.request("models/resnet50?customized=true", management=True).json[0][
        "customizedMetadata"
    ]
    described = json.loads(described) if isinstance(described, str) else described
    assert (described["backend"]["name"], described["precision"]) == ("openvino", "int8")
    pin = (ROOT / "requirements/current/serve.in").read_text().partition("\ntorch==")[2].split()[0]
    assert described["versions"]["torch"].partition("+")[0] == pin
    assert served.verify() == (0, {})
    with zipfile.ZipFile(archive) as packed:
        answer = served.predict("resnet50", packed.read("example.jpg"))
    assert (answer.status, len(answer.json)) == (200, 5)


def test_the_plan_says_why_that_backend(served: Kit):
    plan = json.loads((served.run_dir / "plan.json").read_text())
    assert plan["package_set"] == find_set()
    assert plan["reasons"]["a1.resnet50.backend"].startswith("default")


def test_an_archive_of_another_torch_is_not_started(archive: Path, tmp_path: Path):
    """As the other set's would be: only what it says of itself is changed."""
    other = tmp_path / "store"
    other.mkdir()
    with zipfile.ZipFile(archive) as packed, zipfile.ZipFile(other / archive.name, "w") as copy:
        for name in packed.namelist():
            body = packed.read(name)
            if name == "definition.json":
                known = json.loads(body)
                known["built_with"]["torch"] = "2.8.0"
                body = json.dumps(known).encode()
            copy.writestr(name, body)
    kit = Kit(run_dir=tmp_path / "run", store=other, port=find_port())
    kit.plan("resnet50", PRECISION="int8")
    started = kit.start()
    assert started.returncode == 1
    assert f"{other / archive.name}: built with torch 2.8.0, here is " in started.stdout + started.stderr
