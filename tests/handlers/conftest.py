"""Handlers as TorchServe's worker loads them, once for all tests that leave them as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.image_classifier import ImageClassifier
from handlers.text_classifier import TextClassifier
from tests.handlers.context import FakeContext


@pytest.fixture(scope="session")
def images(tiny_image: Path) -> ImageClassifier:
    loaded = ImageClassifier()
    loaded.initialize(FakeContext(tiny_image))
    return loaded


@pytest.fixture(scope="session")
def texts(tiny_text: Path) -> TextClassifier:
    loaded = TextClassifier()
    loaded.initialize(FakeContext(tiny_text))
    return loaded


@pytest.fixture
def smoke(tiny_image: Path) -> bytes:
    return (tiny_image / "example.jpg").read_bytes()
