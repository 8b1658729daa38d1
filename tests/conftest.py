"""Small archives for tests: real architectures, real packing, seconds to build; and workers of a test run."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from models.accuracy import THREADS
from models.build import build_archive
from models.definition import ModelDefinition, read_definition
from models.request import WeightsRequest
from tests.workers import WORKER_MIB, count_cpus, count_workers, for_all_workers

RANDOM = WeightsRequest(source="random")


def from_path(path: Path) -> WeightsRequest:
    return WeightsRequest(source="path", path=path)


FP32_ONLY = {"fp32": {"self_check_relative_error": 0.001, "answer_relative": 0.01, "answer_absolute": 0.001}}
"""Without other precisions a build needs no accuracy gate, which takes ten seconds."""
PRECISIONS = {
    **FP32_ONLY,
    "bf16": {"self_check_relative_error": 0.1, "answer_relative": 0.2, "answer_absolute": 0.05},
}
TINY_IMAGE = {
    "name": "tiny_image",
    "handler": "image_classifier",
    "architecture": "resnet18",
    "weights": "IMAGENET1K_V1",
    "batch_sizes": [1, 2, 4],
    "memory": {"worker_mib": 500, "request_mib": 100},
    "precisions": FP32_ONLY,
    "options": {
        "top_k": 3,
        "size": {"resize": 72, "crop": 64},
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
}
TINY_TEXT = {
    "name": "tiny_text",
    "handler": "text_classifier",
    "architecture": "bert",
    "architecture_options": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
    "weights": "none/none",
    "labels": ["negative", "neutral", "positive"],
    "batch_sizes": [1, 2],
    "memory": {"worker_mib": 500, "request_mib": 100},
    "precisions": FP32_ONLY,
    "options": {
        "token_lengths": [16, 32],
        "row_tokens": 16,
        "tokens_per_run": 32,
        "max_texts_per_request": 4,
        "attention": "eager",
    },
}


LENIENT = {"agreement": 0.5}
"""Random models this small have no margins: rounding changes some of their answers."""


def with_bf16(raw: dict) -> dict:
    """The definition with FP32 and BF16, as archives that serve need it."""
    return {**raw, "precisions": PRECISIONS, "accuracy_gate": LENIENT}


INT8_RECIPE = {"self_check_relative_error": 0.5, "answer_relative": 0.5, "answer_absolute": 0.2}


def with_int8(raw: dict, *, agreement: float = LENIENT["agreement"]) -> dict:
    """With all three, validated by the accuracy gate."""
    precisions = {**PRECISIONS, "int8": INT8_RECIPE}
    gate = {"agreement": agreement}
    return {**raw, "precisions": precisions, "accuracy_gate": gate}


def write_definition(folder: Path, raw: dict) -> ModelDefinition:
    """A models/ folder with one definition in it."""
    (folder / raw["name"]).mkdir(parents=True, exist_ok=True)
    (folder / raw["name"] / "model.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return read_definition(raw["name"], folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """-n auto."""
    return count_workers(cpus=1, mib=WORKER_MIB)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real builds take minutes: they begin first, so that no worker is left with them at the end."""
    items.sort(key=lambda item: "models" not in item.path.parts)


def pytest_configure(config: pytest.Config) -> None:
    """Workers share the CPUs: with a thread for each in every worker they would wait for each other."""
    if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
        share = count_cpus() // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        torch.set_num_threads(max(THREADS, share))  # with one, IPEX calibrates badly


def _build(tmp_path_factory: pytest.TempPathFactory, raw: dict) -> Path:
    with for_all_workers(tmp_path_factory, raw["name"]) as folder:
        archive = folder / f"{raw['name']}.mar"
        if not archive.exists():
            definition = write_definition(folder, with_bf16(raw))
            build_archive(definition, RANDOM, store=folder, backends=("ipex", "eager"))
            _unpack(archive)
    return archive


@pytest.fixture(scope="session")
def tiny_image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory, TINY_IMAGE)


@pytest.fixture(scope="session")
def tiny_text_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory, TINY_TEXT)


def _unpack(archive: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(archive.parent / "unpacked")


@pytest.fixture(scope="session")
def tiny_image(tiny_image_archive: Path) -> Path:
    """An unpacked image archive."""
    return tiny_image_archive.parent / "unpacked"


@pytest.fixture(scope="session")
def tiny_text(tiny_text_archive: Path) -> Path:
    """An unpacked text archive."""
    return tiny_text_archive.parent / "unpacked"
