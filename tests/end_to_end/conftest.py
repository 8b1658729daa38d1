"""Archives and running servers that the end-to-end tests share."""

from __future__ import annotations

import functools
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from handlers.backends.catalogue import find_set, name_store
from loadtest.results import Series, list_results, read_result
from models.build import build_archive
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, with_bf16, write_definition
from tests.end_to_end.kit import ROOT, Kit, find_port, running
from tests.workers import for_all_workers

STORE = ROOT / "run" / name_store(find_set()).replace("model", "test")
"""Not model-store/: the tests must not replace archives that a person's server is serving."""
LOADS = {"resnet50": "one-photo", "bert": "one-text"}
"""Model → what `load_with` sends."""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet50 and BERT as shipped, with random weights; saved between test runs."""
    command = [sys.executable, "-m", "models", "build", "--precisions", "fp32 int8"]
    command += ["MODELS=resnet50 bert", "WEIGHTS=random", f"MODEL_STORE={STORE}"]
    with for_all_workers(tmp_path_factory, "store"):
        subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return STORE


@pytest.fixture(scope="session")
def kit(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """Both models served as `make serve` serves them, in batches on any machine."""
    kit = Kit(run_dir=tmp_path_factory.mktemp("serve"), store=store, port=find_port())
    kit.plan("resnet50 bert", BATCH=8, DELAY_MS=20)
    with running(kit) as started:
        (kit.run_dir / "start.txt").write_text(started.stdout)
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit


@dataclass(frozen=True, kw_only=True)
class Load:
    """What came of one short `make loadtest DRIVER=` of both models."""

    done: subprocess.CompletedProcess[str]
    folder: Path
    """Of the saved result."""
    series: dict[str, Series]
    """By model; each of one window."""


@pytest.fixture(scope="session")
def load_with(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Load]:
    """Driver → a few seconds of a few users for each model; once in a test run."""
    folder = tmp_path_factory.mktemp("load")
    scenarios = {model: folder / f"{model}-short.yaml" for model in LOADS}
    for model, payloads in LOADS.items():
        short = {"warm_up_s": 1, "duration_s": 3, "repeats": 1, "users": 2}
        scenarios[model].write_text(yaml.safe_dump({"model": model, "payloads": payloads, **short}))

    @functools.cache
    def run(driver: str) -> Load:
        command = [sys.executable, "-m", "loadtest", "run", f"RUN_DIR={kit.run_dir}", "--driver", driver]
        command += ["--scenario", " ".join(map(str, scenarios.values())), "--results", str(folder)]
        before = list_results(folder)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        results = [one for one in list_results(folder) if one not in before]
        assert len(results) == 1, done.stdout + done.stderr
        kept = read_result(results[0])
        blocks = [block for name in kept.list_blocks() if (block := kept.find_block(name))]
        series = {one.load.models[0]: one for block in blocks for one in block.series}
        return Load(done=done, folder=results[0], series=series)

    return run


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of two small models, for servers that start quickly."""
    with for_all_workers(tmp_path_factory, "tiny-store") as folder:
        for raw in (TINY_IMAGE, TINY_TEXT):
            definition = write_definition(folder / "models", with_bf16(raw))
            build_archive(definition, RANDOM, store=folder, backends=("ipex", "eager"))
    return folder


@pytest.fixture
def tiny_kit(tmp_path: Path, tiny_store: Path) -> Iterator[Kit]:
    """A run directory for the small models; whatever a test leaves running is stopped."""
    kit = Kit(run_dir=tmp_path / "run", store=tiny_store, port=find_port())
    yield kit
    kit.stop()


@pytest.fixture(scope="session")
def tiny_server(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """A small model served, for tests that leave it good."""
    folder = tmp_path_factory.mktemp("tiny")
    kit = Kit(run_dir=folder / "run", store=tiny_store, port=find_port())
    kit.plan("tiny_image")
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit


@pytest.fixture
def photo(store: Path) -> bytes:
    """The image of ResNet50's smoke request."""
    with zipfile.ZipFile(store / "resnet50.mar") as archive:
        return archive.read("example.jpg")
