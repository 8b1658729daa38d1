"""The accuracy gate: a precision that does not answer as FP32 eager does is not served.

Run as a process of its own (`python -m models.accuracy STAGING JOB`), because backends may calibrate badly
with one thread and compute wrongly when the number of threads changes. Figures, verdicts and INT8's recipes
are in models/gate/; here is what runs the model.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.backends.catalogue import BACKENDS, BASELINE, INT8
from handlers.backends.loader import Calibration, LoadState, open_loader
from handlers.request import Request
from handlers.shared.errors import BadRequest, LoadError
from handlers.shared.options import OPTIONAL_STEPS, LoadOptions
from handlers.shared.steps import build_graph
from handlers.task import Task
from models.data import (
    MOST_LABELLED,
    Dataset,
    make_calibration,
    make_held_out,
    read_dataset,
    split_dataset,
)
from models.definition import Thresholds
from models.errors import BuildError
from models.gate.figures import Figures, check_labels, compare
from models.gate.search import find_best, search_recipes
from models.gate.trials import Bench, Inputs, Trier, write_made
from models.handlers import load_handler

EAGER = "eager"
THREADS = 2
"""More than one: with one thread a backend's observers see too little."""
SAMPLES = 16
"""Laid out in runs together; more would only take memory."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one precision: figures, or why it cannot be built on this machine at all."""

    figures: Figures | None = None
    failure: str | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)
    """INT8's recipes in order; see Trial.record."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The held-out inputs, and what FP32 eager answers to them."""

    held_out: Dataset
    samples: Sequence[Any]
    logits: np.ndarray
    """float32 (inputs, outputs), or of tokens (tokens of all inputs, classes)."""
    labels: Sequence[str]
    activation: str
    thresholds: Thresholds

    def compare(self, state: LoadState, **sources: str) -> Figures:
        """A model's answers beside it."""
        return compare(
            _run(state, self.samples),
            self.logits,
            held_out=self.held_out,
            labels=self.labels,
            activation=self.activation,
            thresholds=self.thresholds,
            **sources,
        )


def measure(staging: Path, job: dict[str, Any]) -> dict[str, Outcome]:
    """Compare each precision with FP32 eager; INT8 in the first of its recipes that passes."""
    torch.set_num_threads(THREADS)
    calibration, held_out = _choose_data(job)
    reference = _ask_eager(staging, held_out, Thresholds(**job.get("thresholds", {})))
    outcomes = {}
    # Eager first: a backend that is once in the process may give its operators to graphs of PyTorch alone.
    for variant in sorted(job["precisions"], key=lambda one: one.split()[0] != EAGER):
        backend, precision = variant.split()
        try:
            outcomes[variant] = (
                _measure_int8(staging, backend, calibration, reference)
                if precision == INT8
                else _measure_plain(staging, backend, precision, reference)
            )
        except (LoadError, RuntimeError) as error:
            # FP32 must not be lost because this CPU, or this backend, cannot build a narrower precision.
            outcomes[variant] = Outcome(failure=str(getattr(error, "cause", error)))
    return {variant: outcomes[variant] for variant in job["precisions"]}


def _ask_eager(staging: Path, held_out: Dataset, thresholds: Thresholds) -> Reference:
    eager = _load_eager(staging)
    task = eager.task
    activation = task.definition.model.get("activation")
    if activation is None:
        raise BuildError(
            f"only classifiers and embeddings are compared with FP32: {task.definition.name} is neither; "
            "serve it in fp32, or say in model.yaml how its outputs are read (options, activation)"
        )
    check_labels(held_out, task.definition.labels, activation)
    samples = _read_samples(task, held_out)
    logits = _run(eager, samples)
    if held_out.labels and len(logits) != len(samples):
        raise BuildError(f"tokens have labels of their own: give {held_out.source} without labels")
    return Reference(
        held_out=held_out,
        samples=samples,
        logits=logits,
        labels=task.definition.labels,
        activation=activation,
        thresholds=thresholds,
    )


def _measure_plain(staging: Path, backend: str, precision: str, reference: Reference) -> Outcome:
    if not all((staging / file).exists() for file in BACKENDS[backend].files.get(precision, ())):
        write_made(open_loader(backend).prepare(_load_eager(staging), precision), staging)
    return Outcome(figures=reference.compare(_load(staging, backend, precision)))


def _measure_int8(staging: Path, backend: str, calibration: Dataset, reference: Reference) -> Outcome:
    """The staging folder keeps the recipe that passes, or else the one nearest to it."""
    task = load_handler(staging)
    samples = _read_samples(task, calibration)
    hands = Calibration(
        directory=staging,
        load_eager=lambda: _load_eager(staging, channels_last=BACKENDS[backend].channels_last),
        batch=lambda state, count: _batches(state, samples[:count]),
    )
    quantiser = open_loader(backend).make_quantiser(hands, convolutional=task.convolutional)
    bench = Bench(
        calibration=hands,
        quantiser=quantiser,
        load_int8=lambda: _load(staging, backend, INT8),
        compare=lambda state, recipe: reference.compare(state, recipe=recipe, calibration=calibration.source),
    )
    trier = Trier(bench, reference.thresholds)
    trials = search_recipes(quantiser.recipes, trier.attempt)
    best = find_best(trials)
    write_made(best.made, staging)
    return Outcome(figures=best.figures, tried=[trial.record() for trial in trials])


def _choose_data(job: dict[str, Any]) -> tuple[Dataset, Dataset]:
    """(calibration, held out); never the same inputs."""
    kind = job["takes"]
    own = read_dataset(kind, Path(job["calibration"])) if job["calibration"] else None
    held_out = read_dataset(kind, Path(job["eval"]), most_labelled=MOST_LABELLED) if job["eval"] else None
    if own is not None and held_out is None:
        return split_dataset(own)
    return own or make_calibration(kind), held_out or make_held_out(kind)


def _load_eager(staging: Path, *, channels_last: bool = False) -> LoadState:
    kept = {"channels_last"} if channels_last else set()
    return _load(staging, EAGER, BASELINE, off=frozenset(OPTIONAL_STEPS) - kept)


def _load(staging: Path, backend: str, precision: str, *, off: frozenset[str] = frozenset()) -> LoadState:
    options = LoadOptions(precision=precision, backend=backend, threads=THREADS, off=off)
    state = LoadState(task=load_handler(staging), options=options, loader=open_loader(backend))
    build_graph(state)
    return state


def _read_samples(task: Task, dataset: Dataset) -> list[Any]:
    """One of each body."""
    return [task.decode(Request(content=body)) for body in dataset.bodies]


def _batches(state: LoadState, samples: Sequence[Any]) -> Iterator[Inputs]:
    """Runs' inputs alone."""
    return (inputs for _, inputs in _plan(state, samples))


def _plan(state: LoadState, samples: Sequence[Any]) -> Iterator[tuple[list[int], Inputs]]:
    """Runs as they are served: which samples, and their inputs, valid until the next are asked for."""
    task = state.task
    for start in range(0, len(samples), SAMPLES):
        chosen = samples[start : start + SAMPLES]
        for run in task.layout.plan_runs([task.measure(one) for one in chosen]):
            yield [start + position for position in run.samples], state.to_inputs(run, chosen)


def _run(state: LoadState, samples: Sequence[Any]) -> np.ndarray:
    logits: list[Any] = [None] * len(samples)
    for positions, inputs in _plan(state, samples):
        outputs = state.task.split(state.run(inputs), [samples[position] for position in positions])
        for position, output in zip(positions, outputs, strict=True):
            logits[position] = np.atleast_2d(output.numpy())
    return np.concatenate(logits)


def main() -> int:
    """Read the job, print the figures as JSON on the last line; 1 with one clear line on failure."""
    staging, job = Path(sys.argv[1]), json.loads(sys.argv[2])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        # Backends print to standard output; only the figures may stand there.
        with contextlib.redirect_stdout(sys.stderr):
            outcomes = measure(staging, job)
    except (LoadError, BadRequest, BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({precision: asdict(one) for precision, one in outcomes.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
