"""The accuracy gate: a precision that does not answer as FP32 eager does is not served.

Run as a process of its own (`python -m models.accuracy STAGING JOB`), because IPEX calibrates badly with one
thread and computes wrongly when the number of threads changes in a process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.shared.classifier import Classifier
from handlers.shared.errors import LoadError, RequestError
from handlers.shared.options import OPTIONAL_STEPS, LoadOptions
from handlers.shared.precision import INT8
from handlers.shared.quantization import RECIPE_FILE, prepare_quantization
from handlers.shared.state import LoadState
from handlers.shared.steps import build_graph
from models.classifiers import load_classifier
from models.data import Dataset, make_calibration, make_held_out, read_dataset, split_dataset
from models.errors import BuildError

THREADS = 2
"""More than one: with one thread IPEX's observers see too little (read in its documentation)."""
SAMPLES = 16
"""Laid out in runs together; more would only take memory."""
DIGITS = 5
_ADDRESS = re.compile(r'("op_type": "<[^"]*?) at 0x[0-9a-f]+>')


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How one precision compared with FP32 eager on the held-out inputs."""

    samples: int
    source: str
    """Where the held-out inputs come from."""
    calibration: str | None
    """Where INT8's calibration inputs come from."""
    agreement: float
    """Share of inputs with the same top-1 answer."""
    largest_probability_difference: float
    least_cosine: float
    """Of the centred logits, over the inputs."""
    labelled_accuracy: float | None = None
    """Share of right answers, where labels were given."""
    labelled_accuracy_fp32: float | None = None


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a precision must reach; the definition's `accuracy_gate`."""

    agreement: float = 0.99
    labelled_loss_points: float = 1.0
    """Percentage points of labelled accuracy that may be lost."""


def judge(figures: Figures, thresholds: Thresholds) -> str | None:
    """None when the precision may be served, else by how much it failed."""
    if not figures.agreement >= thresholds.agreement:
        return (
            f"agreement with FP32 is {figures.agreement:.1%} of {figures.samples} {figures.source} inputs, "
            f"at least {thresholds.agreement:.1%} is needed"
        )
    if figures.labelled_accuracy is None or figures.labelled_accuracy_fp32 is None:
        return None
    loss = 100 * (figures.labelled_accuracy_fp32 - figures.labelled_accuracy)
    if not loss <= thresholds.labelled_loss_points:
        return (
            f"accuracy falls from {figures.labelled_accuracy_fp32:.1%} to {figures.labelled_accuracy:.1%}, "
            f"at most {thresholds.labelled_loss_points:g} points may be lost"
        )
    return None


def compare(
    got: np.ndarray,
    expected: np.ndarray,
    *,
    held_out: Dataset,
    labels: Sequence[str],
    calibration: str | None,
) -> Figures:
    """Figures from two logits arrays, float32 (inputs, classes)."""
    p_got, p_expected = softmax(got), softmax(expected)
    a, b = got - got.mean(axis=1, keepdims=True), expected - expected.mean(axis=1, keepdims=True)
    cosine = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)
    return Figures(
        samples=len(got),
        source=held_out.source,
        calibration=calibration,
        agreement=round(float((got.argmax(axis=1) == expected.argmax(axis=1)).mean()), DIGITS),
        largest_probability_difference=round(float(np.abs(p_got - p_expected).max()), DIGITS),
        least_cosine=round(float(cosine.min()), DIGITS),
        labelled_accuracy=_accuracy(got, held_out, labels),
        labelled_accuracy_fp32=_accuracy(expected, held_out, labels),
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float32 (inputs, classes)."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _accuracy(logits: np.ndarray, held_out: Dataset, labels: Sequence[str]) -> float | None:
    if held_out.labels is None:
        return None
    right = [
        labels[best] == label for best, label in zip(logits.argmax(axis=1), held_out.labels, strict=True)
    ]
    return round(float(np.mean(right)), DIGITS)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one precision: figures, or why it cannot be built on this machine at all."""

    figures: Figures | None = None
    failure: str | None = None


def measure(staging: Path, job: dict[str, Any]) -> dict[str, Outcome]:
    """Calibrate INT8 where it is asked for, and compare each precision with FP32 eager."""
    torch.set_num_threads(THREADS)
    calibration, held_out = _choose_data(job)
    eager = _load_eager(staging)
    labels = eager.classifier.labels
    samples = _read_samples(eager.classifier, held_out)
    expected = _run(eager, samples)
    del eager  # a second model is about to be loaded
    outcomes = {}
    for precision in job["precisions"]:
        source = calibration.source if precision == INT8 else None
        try:
            if precision == INT8:
                write_recipe(staging, calibration)
            got = _run(_load(staging, precision), samples)
        except (LoadError, RuntimeError) as error:
            # FP32 must not be lost because this CPU, or this IPEX, cannot build a narrower precision.
            outcomes[precision] = Outcome(failure=str(getattr(error, "cause", error)))
            continue
        figures = compare(got, expected, held_out=held_out, labels=labels, calibration=source)
        outcomes[precision] = Outcome(figures=figures)
    return outcomes


def _choose_data(job: dict[str, Any]) -> tuple[Dataset, Dataset]:
    """(calibration, held out); never the same inputs."""
    kind = job["kind"]
    own = read_dataset(kind, Path(job["calibration"])) if job["calibration"] else None
    judged = read_dataset(kind, Path(job["eval"])) if job["eval"] else None
    if own is not None and judged is None:
        return split_dataset(own)
    return own or make_calibration(kind), judged or make_held_out(kind)


def write_recipe(staging: Path, calibration: Dataset) -> None:
    """Observe the eager model on the calibration inputs and save IPEX's recipe into the staging folder."""
    state = _load_eager(staging, channels_last=True)
    prepared = prepare_quantization(state.model, state.inputs(state.classifier.layout.trace_shape))
    with torch.no_grad():
        for _, inputs in _plan(state, _read_samples(state.classifier, calibration)):
            prepared(*inputs)
    recipe = staging / RECIPE_FILE
    prepared.save_qconf_summary(qconf_summary=str(recipe))
    recipe.write_text(drop_addresses(recipe.read_text(encoding="utf-8")), encoding="utf-8")


def drop_addresses(recipe: str) -> str:
    """The recipe without memory addresses, which differ in each process.

    IPEX writes a function's repr as its `op_type` (`<function softmax at 0x7f…>`), but never reads it again:
    load_qconf_summary_to_model finds operators by their number and `fqn`.
    """
    return _ADDRESS.sub(r"\1>", recipe)


def _load_eager(staging: Path, *, channels_last: bool = False) -> LoadState:
    kept = {"channels_last"} if channels_last else set()
    return _load(staging, "fp32", ipex=False, off=frozenset(OPTIONAL_STEPS) - kept)


def _load(
    staging: Path, precision: str, *, ipex: bool = True, off: frozenset[str] = frozenset()
) -> LoadState:
    options = LoadOptions(precision=precision, ipex=ipex, threads=THREADS, off=off)
    state = LoadState(classifier=load_classifier(staging), options=options)
    build_graph(state)
    return state


def _read_samples(classifier: Classifier, dataset: Dataset) -> list[Any]:
    inputs = [one for body in dataset.bodies for one in classifier.read_request(body).inputs]
    return classifier.encode(inputs)


def _plan(state: LoadState, samples: list[Any]) -> Iterator[tuple[list[int], tuple[torch.Tensor, ...]]]:
    """Runs as they are served: which samples, and their inputs, valid until the next are asked for."""
    classifier = state.classifier
    for start in range(0, len(samples), SAMPLES):
        chosen = samples[start : start + SAMPLES]
        for run in classifier.layout.plan_runs([classifier.sample_length(one) for one in chosen]):
            yield [start + position for position in run.samples], state.to_inputs(run, chosen)


def _run(state: LoadState, samples: list[Any]) -> np.ndarray:
    logits = np.empty((len(samples), len(state.classifier.labels)), dtype=np.float32)
    for positions, inputs in _plan(state, samples):
        logits[positions] = state.run(inputs)[: len(positions)].numpy()
    return logits


def main() -> int:
    """Read the job, print the figures as JSON on the last line; 1 with one clear line on failure."""
    staging, job = Path(sys.argv[1]), json.loads(sys.argv[2])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        # IPEX prints to standard output; only the figures may stand there.
        with contextlib.redirect_stdout(sys.stderr):
            outcomes = measure(staging, job)
    except (LoadError, RequestError, BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({precision: asdict(one) for precision, one in outcomes.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
