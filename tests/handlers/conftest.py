"""Handlers as TorchServe's worker loads them, once for all tests that leave them as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.cpu_image_classifier import CpuImageClassifier
from handlers.cpu_text_classifier import CpuTextClassifier
from tests.handlers.context import FakeContext


@pytest.fixture(scope="session")
def images(tiny_image: Path) -> CpuImageClassifier:
    loaded = CpuImageClassifier()
    loaded.initialize(FakeContext(tiny_image))
    return loaded


@pytest.fixture(scope="session")
def texts(tiny_text: Path) -> CpuTextClassifier:
    loaded = CpuTextClassifier()
    loaded.initialize(FakeContext(tiny_text))
    return loaded


@pytest.fixture
def canary(tiny_image: Path) -> bytes:
    return (tiny_image / "canary.jpg").read_bytes()
