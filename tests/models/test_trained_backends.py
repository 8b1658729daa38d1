"""Trained models in INT8 by each backend that is here: as right for clients as the gate validated."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from config.installed import read_installed
from handlers.backends.catalogue import BACKENDS, DEFAULT, INT8, SETS, find_set, name_variant
from tests.models.trained import FLOOR, ROWS, Packed, measure_accuracy, pack
from tests.models.training import Trained
from tests.models.worker import Worker, ask_worker

PREFIX = Path(sys.prefix)
OTHERS = [
    name
    for name in SETS[find_set()]
    if name not in read_installed(PREFIX).missing_backends
    and name != DEFAULT
    and INT8 in BACKENDS[name].flags
]
"""The default has tests of its own."""
HERE = [name for name in OTHERS if all(map(shutil.which, BACKENDS[name].tools))]
pytestmark = pytest.mark.skipif(not HERE, reason="no other backend that quantises, or no g++ to build by it")


@pytest.fixture(scope="module")
def packed(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack(trained, tmp_path_factory.mktemp("backends"), HERE, (INT8,))


@pytest.fixture(scope="module", params=HERE)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def worker(trained: Trained, packed: Packed, backend: str) -> Worker:
    return ask_worker(packed.directory, backend=backend, precision=INT8, requests=trained.requests, rows=ROWS)


def test_its_answers_are_right_and_as_right_as_the_gate_says(trained, packed, backend, worker):
    accuracy, definition = measure_accuracy(worker, trained), packed.definition
    validated = definition.find_accuracy(name_variant(backend, INT8))
    print(f"{trained.definition.name} by {backend}: accuracy through the worker {accuracy:.4f}, {validated}")
    assert name_variant(backend, INT8) in definition.served
    assert accuracy >= FLOOR[trained.takes]
    assert validated["labelled_accuracy_fp32"] - accuracy <= 0.01
    # The gate lays its inputs out in other runs, so that a few answers round elsewhere.
    assert accuracy == pytest.approx(validated["labelled_accuracy"], abs=3 / len(trained.answers))


def test_it_was_that_backend_by_what_executed(backend, worker):
    told = worker.describe
    assert (told["backend"]["name"], told["precision"]) == (backend, INT8)
    proof = BACKENDS[backend].judge(told["graph"], precision=INT8, threads=1, off=frozenset())
    assert proof.good, proof
