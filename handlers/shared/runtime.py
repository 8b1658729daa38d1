"""A loaded model that answers batches of requests; it knows no server."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from handlers.shared.classifier import Classifier, Request
from handlers.shared.errors import RequestError
from handlers.shared.evidence import (
    describe_allocator,
    describe_graph,
    describe_openmp,
    describe_threads,
    read_versions,
)
from handlers.shared.ipex import IPEX
from handlers.shared.options import BUCKETS, LoadOptions
from handlers.shared.shapes import Padding, Run, plan_one_run, plan_runs
from handlers.shared.state import LoadState
from handlers.shared.steps import StepRecord, memory_format, run_steps

logger = logging.getLogger("cpu_kit")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One request's answer: an HTTP status and a JSON body."""

    status: int
    body: bytes


class ModelRuntime:
    """One worker's model. Build it with `load_runtime`."""

    def __init__(self, state: LoadState, records: list[StepRecord], seconds: float) -> None:
        self._state = state
        self._classifier = state.classifier
        self._grid = state.classifier.grid
        self._one_run = BUCKETS in state.options.off
        self.padding = Padding()
        self.records = records
        self.seconds = seconds

    def predict(self, bodies: Sequence[Any]) -> list[Reply]:
        """Answer each body in its place; a wrong one gets its own error and does not touch the others."""
        read = [self._read(body) for body in bodies]
        inputs = [one for request in read if isinstance(request, Request) for one in request.inputs]
        samples = self._classifier.encode(inputs)
        answers = map(self._classifier.to_answer, self._infer(samples), samples)
        return [_reply(one, answers) if isinstance(one, Request) else one for one in read]

    def _read(self, body: Any) -> Request | Reply:
        try:
            return self._classifier.read_request(body)
        except RequestError as error:
            return _refuse(error.status, str(error))
        except Exception as error:
            # One request must never fail its batch, whatever a decoder raises.
            logger.exception("a request could not be read")
            return _refuse(500, f"the request could not be read: {type(error).__name__}")

    def _infer(self, samples: list[Any]) -> np.ndarray:
        """Probabilities, float32 (len(samples), classes), in the samples' order."""
        result = np.empty((len(samples), len(self._classifier.labels)), dtype=np.float32)
        needed = [self._classifier.sample_length(sample) for sample in samples]
        for run in plan_one_run(needed) if self._one_run else plan_runs(needed, self._grid):
            result[list(run.samples)] = self._run(run, samples)
            self.padding.count(run, needed)
        return result

    def _run(self, run: Run, samples: list[Any]) -> np.ndarray:
        chosen = [samples[position] for position in run.samples]
        inputs = self._classifier.to_inputs(
            chosen, length=run.length, channels_last=self._state.channels_last
        )
        return torch.softmax(self._state.run(inputs), dim=1).numpy()

    def describe(self) -> dict[str, Any]:
        """What is really in effect in this process; see the README's verify section for each item."""
        state, definition = self._state, self._classifier.definition
        versions = read_versions(("torch", IPEX, "safetensors", *self._classifier.libraries))
        return {
            "model": definition.name,
            "archive_id": definition.archive_id,
            "weights": definition.weights,
            "notes": list(definition.notes),
            "precision": state.options.precision,
            "limits": dict(self._classifier.limits),
            "pid": os.getpid(),
            "load_seconds": self.seconds,
            "steps": [asdict(record) for record in self.records],
            "threads": describe_threads(),
            "versions": {"python": platform.python_version(), **versions},
            "ipex": {
                "enabled": state.options.ipex,
                "version": versions[IPEX] if state.options.ipex else None,
            },
            "graph": describe_graph(state.graph_kind, state.facts["operators"]),
            "memory_format": memory_format(state),
            "allocator": describe_allocator(),
            "openmp": describe_openmp(),
            "self_check": state.facts["self_check"],
            "accuracy": definition.accuracy.get(state.options.precision),
            "shapes": [asdict(shape) for shape in self._grid.list_shapes()],
            "padding": self.padding.describe(),
        }


def _reply(request: Request, answers: Iterator[Any]) -> Reply:
    own = [next(answers) for _ in request.inputs]
    return Reply(status=200, body=to_json(own if request.many else own[0]))


def _refuse(status: int, message: str) -> Reply:
    return Reply(status=status, body=to_json({"code": status, "error": message}))


def load_runtime(classifier: Classifier, options: LoadOptions) -> ModelRuntime:
    """Run all load steps; StepError when one cannot be done as asked."""
    started = time.monotonic()
    # Before anything else: IPEX gives wrong results when the OpenMP thread count changes after optimising.
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    _set_interop_threads(1)
    state = LoadState(classifier=classifier, options=options)
    records = run_steps(state)
    return ModelRuntime(state, records, round(time.monotonic() - started, 3))


def _set_interop_threads(count: int) -> None:
    """One model at a time runs in a worker, so more inter-op threads only compete for its cores."""
    if torch.get_num_interop_threads() != count:
        torch.set_num_interop_threads(count)


def to_json(value: Any) -> bytes:
    """Compact UTF-8 JSON, with the line end that a terminal wants."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n"
