"""Trained models by each engine that is here: as right for clients as the gate judged, by that engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from config.installed import read_installed
from handlers.engines import DEFAULT, ENGINES, name_variant
from handlers.engines.stacks import list_of_stack, read_stack
from tests.models.trained import FLOOR, ROWS, Packed, measure_accuracy, pack
from tests.models.training import Trained
from tests.models.worker import Worker, ask_worker

PREFIX = Path(sys.prefix)
HERE = [
    name
    for name in list_of_stack(read_stack(PREFIX))
    if name not in read_installed(PREFIX).missing_engines and name != DEFAULT
]
"""The default has tests of its own."""
VARIANTS = [(engine, precision) for engine in HERE for precision in ENGINES[engine].flags]


@pytest.fixture(scope="module")
def packed(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack(trained, tmp_path_factory.mktemp("engines"), HERE)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: name_variant(*variant))
def variant(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(scope="module")
def worker(trained: Trained, packed: Packed, variant: tuple[str, str]) -> Worker:
    engine, precision = variant
    requests = trained.requests
    return ask_worker(packed.directory, engine=engine, precision=precision, requests=requests, rows=ROWS)


def test_its_answers_are_right_and_as_right_as_the_gate_says(trained, packed, variant, worker):
    accuracy, definition = measure_accuracy(worker, trained), packed.definition
    print(f"{trained.definition.name} {name_variant(*variant)}: accuracy through the worker {accuracy:.4f}")
    assert definition["refused"] == {}
    assert accuracy >= FLOOR[trained.definition.kind]
    # Eager FP32 is what the others are judged against.
    if variant != ("eager", "fp32"):
        judged = definition["accuracy"][name_variant(*variant)]
        assert judged["labelled_accuracy_fp32"] - accuracy <= 0.01
        # The gate lays its inputs out in other runs, so that a few answers round elsewhere.
        assert accuracy == pytest.approx(judged["labelled_accuracy"], abs=3 / len(trained.answers))


def test_it_was_that_engine_by_what_executed(variant, worker):
    engine, precision = variant
    told = worker.describe
    assert (told["engine"]["name"], told["precision"]) == variant
    proof = ENGINES[engine].judge(told["graph"], precision=precision, threads=1, off=frozenset())
    assert proof.good, proof
