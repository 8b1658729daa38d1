"""A loaded model that answers batches of requests; it knows no server."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from handlers.backends.loader import LoadedModel, LoadState, open_loader
from handlers.shared.bodies import check_content_type
from handlers.shared.classifier import Classifier, Request
from handlers.shared.errors import RequestError
from handlers.shared.evidence import (
    describe_allocator,
    describe_openmp,
    describe_threads,
    read_versions,
)
from handlers.shared.forms import open_form
from handlers.shared.log import log
from handlers.shared.options import LoadOptions
from handlers.shared.outputs import activate
from handlers.shared.profiling import Phases, Profiler
from handlers.shared.replies import Reply, fail, refuse, to_json
from handlers.shared.shapes import Fill, Run
from handlers.shared.steps import StepRecord, run_steps


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One request on its way through a batch."""

    request: Request
    samples: Sequence[Any]


class ModelRuntime:
    """One worker's model. Build it with `load_runtime`."""

    def __init__(self, loaded: LoadedModel, records: list[StepRecord], seconds: float) -> None:
        self._loaded = loaded
        self._classifier = loaded.classifier
        self._layout = loaded.classifier.layout
        self.work = loaded.work
        self.fill = Fill()
        self.phases = Phases()
        self.profiler = Profiler()
        self.model_seconds = 0.0
        """All the time inside the model, apart from decoding, packing and answering."""
        self.records = records
        self.seconds = seconds

    def predict(self, bodies: Sequence[Any]) -> list[Reply]:
        """Answer each body in its place; one that fails gets its own error and does not touch the others."""
        began, in_model = time.perf_counter(), self.model_seconds
        read = [self._read(body) for body in bodies]
        read_s = time.perf_counter() - began
        encoded = self._advance(read, self._encode)
        replies = self._advance(self._admit(encoded), self._answer)
        self.phases.count(
            len(bodies),
            read_s=read_s,
            model_s=self.model_seconds - in_model,
            whole_s=time.perf_counter() - began,
        )
        return replies

    def _advance(self, items: Sequence[Any], step: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        """Those that have no reply yet, one step on."""
        done = iter(self._try(step, [one for one in items if not isinstance(one, Reply)]))
        return [one if isinstance(one, Reply) else next(done) for one in items]

    def _try(self, step: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any]) -> list[Any]:
        """All at once; where that raises, each alone, so that only those fail that cannot be answered."""
        try:
            return step(items) if items else []
        except BaseException as error:
            failed = fail(error, "answered")
        if len(items) == 1:
            return [failed]
        name = self._classifier.definition.name
        log("batch_failed", name, requests=len(items), cause=failed.cause, trace=failed.trace)
        return [result for one in items for result in self._try(step, [one])]

    def _read(self, body: Any) -> Request | Reply:
        try:
            body = open_form(body)
            check_content_type(body)
            return self._classifier.read_request(body)
        except BaseException as error:
            return fail(error, "read")

    def _encode(self, requests: Sequence[Request]) -> list[Encoded]:
        samples = iter(self._classifier.encode([one for request in requests for one in request.inputs]))
        return [
            Encoded(request=request, samples=[next(samples) for _ in request.inputs]) for request in requests
        ]

    def _admit(self, items: Sequence[Encoded | Reply]) -> list[Encoded | Reply]:
        """What the batch has no time for is refused before anything is computed."""
        costs = [self._weigh(one.samples) for one in items if isinstance(one, Encoded)]
        refusals = iter(self.work.admit(costs))
        judged = ((one, None if isinstance(one, Reply) else next(refusals)) for one in items)
        return [refuse(refusal) if refusal else one for one, refusal in judged]

    def _weigh(self, samples: Sequence[Any]) -> int:
        """What a request costs: tokens as they go through the model; samples where all have one size."""
        lengths = (self._layout.fit_length(self._classifier.sample_length(sample)) for sample in samples)
        return sum(max(1, length) for length in lengths)

    def _answer(self, items: Sequence[Encoded]) -> list[Reply]:
        samples = [sample for one in items for sample in one.samples]
        answers = map(self._classifier.to_answer, self._infer(samples), samples)
        return [_reply(one.request, answers) for one in items]

    def _infer(self, samples: list[Any]) -> np.ndarray:
        """Scores, float32 (len(samples), outputs), in the samples' order."""
        result = np.empty((len(samples), len(self._classifier.labels)), dtype=np.float32)
        needed = [self._classifier.sample_length(sample) for sample in samples]
        for run in self._layout.plan_runs(needed):
            result[list(run.samples)] = self._run(run, samples)
            self.fill.count(run, needed)
        if not np.isfinite(result).all():
            raise RequestError("the model's outputs are no numbers (NaN or infinite)", status=500)
        return result

    def _run(self, run: Run, samples: list[Any]) -> np.ndarray:
        inputs = self._loaded.to_inputs(run, samples)
        began = time.perf_counter()
        with self.profiler.watching():
            logits = self._loaded.run(inputs)[: len(run.samples)]
        self.model_seconds += time.perf_counter() - began
        return activate(logits, self._classifier.activation).numpy()

    def describe(self) -> dict[str, Any]:
        """What is really in effect in this process; docs/verify.md has each item."""
        loaded, options, definition = self._loaded, self._loaded.options, self._classifier.definition
        own = loaded.backend.distribution
        names = ("torch", "safetensors", *self._classifier.libraries, *([own] if own else []))
        versions = read_versions(names)
        return {
            "model": definition.name,
            "archive_id": definition.archive_id,
            "weights": definition.weights,
            "notes": list(definition.notes),
            "precision": options.precision,
            "recipe": loaded.facts.get("recipe"),
            "limits": dict(self._classifier.limits),
            "pid": os.getpid(),
            "load_seconds": self.seconds,
            "steps": [asdict(record) for record in self.records],
            "threads": describe_threads(),
            "versions": {"python": platform.python_version(), **versions},
            "backend": {"name": loaded.backend.name, "version": versions[own] if own else versions["torch"]},
            "graph": loaded.facts["graph"],
            "memory_format": loaded.facts["memory_format"],
            "allocator": describe_allocator(),
            "openmp": describe_openmp(),
            "self_check": loaded.facts["self_check"],
            "accuracy": loaded.accuracy,
            "packing": self._classifier.describe_packing(),
            "shapes": [asdict(shape) for shape in self._layout.list_shapes()],
            "fill": self.fill.describe(),
            "phases": self.phases.describe(),
            "work": asdict(self.work),
        }


def _reply(request: Request, answers: Iterator[Any]) -> Reply:
    own = [next(answers) for _ in request.inputs]
    return Reply(status=200, body=to_json(own if request.many else own[0]))


def load_runtime(classifier: Classifier, options: LoadOptions) -> ModelRuntime:
    """Run all load steps; StepError when one cannot be done as asked."""
    started = time.monotonic()
    # Before anything else: a backend may compute wrongly when the OpenMP thread count changes after its load.
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    _set_interop_threads(1)
    state = LoadState(classifier=classifier, options=options, loader=open_loader(options.backend))
    records = run_steps(state)
    return ModelRuntime(state.finish(), records, round(time.monotonic() - started, 3))


def _set_interop_threads(count: int) -> None:
    """One model at a time runs in a worker, so more inter-op threads only compete for its cores."""
    if torch.get_num_interop_threads() != count:
        torch.set_num_interop_threads(count)
