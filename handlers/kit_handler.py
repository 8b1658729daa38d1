"""KitHandler: the base of handlers that TorchServe finds in an archive.

Protocol: ts/model_loader.py calls `initialize(context)` once and `handle(data, context)` per batch; a list
as long as the batch must come back, and only `set_response_status` gives one item its own status.
"""

from __future__ import annotations

import contextlib
import http
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from handlers.backends.loader import LoadedModel, LoadState, open_loader
from handlers.definition import read_folder
from handlers.forms import open_form
from handlers.protocols import MOST_ITEMS, Call, open_call
from handlers.replies import Reply, fail, to_json
from handlers.request import Request, read_request
from handlers.shared.errors import BadRequest, LoadError
from handlers.shared.evidence import describe_allocator, describe_openmp, describe_threads, read_versions
from handlers.shared.log import log, logger
from handlers.shared.metrics import FOLDER, BatchMetrics, find_wait_s
from handlers.shared.options import LoadOptions, read_options
from handlers.shared.outputs import is_finite
from handlers.shared.process import end_with_launcher
from handlers.shared.profiling import RESULT, Phases, Profiler, find_wish
from handlers.shared.shapes import PackingEfficiency, Run
from handlers.shared.steps import StepRecord, run_steps
from handlers.shared.weights import load_weights
from handlers.sums import identify_folder
from handlers.task import Inputs, Task, as_arguments

JSON, CONTENT_TYPE = "application/json", "Content-Type"
DECODE_S = 2.0
"""Reading all items of one request may take as long as the plan has for the worst image (docs/api.md)."""
CAUSE = "x-kit-cause"
"""Header of a response that HAProxy takes out again: why the request failed, for its line in the log."""
PREDICTION_HEADERS = {"content-type", "explain"}
"""One of them is on every prediction whose row is empty: only a form, which is known by its content type, can
have no fields, and /predictions sets `explain`. A describe call has neither."""


def _find_base() -> type:
    """TorchServe's BaseHandler in its worker. A builder has no server, and nothing of `ts` is imported there.

    Its module would import OpenVINO where that is installed, and IPEX under TS_IPEX_ENABLE, which ends the
    process on a torch of another version: a load imports what the plan names, after it has checked it.
    """
    if "ts.model_loader" not in sys.modules:
        return object
    # It would also warn that OpenVINO is not enabled, in the log of a worker that serves by it.
    logging.getLogger("ts.torch_handler.base_handler").setLevel(logging.ERROR)
    hidden = os.environ.pop("TS_IPEX_ENABLE", None)
    sys.modules["openvino"] = None  # type: ignore[assignment]
    try:
        from ts.torch_handler.base_handler import BaseHandler
    finally:
        del sys.modules["openvino"]
        if hidden is not None:
            os.environ["TS_IPEX_ENABLE"] = hidden
    base: type = BaseHandler
    return base


@dataclass
class Batch:
    """One call's requests on their way: those with a reply wait for nothing more."""

    replies: list[Reply | None]
    samples: dict[int, list[Any]] = field(default_factory=dict)
    """Number of a request → what was decoded of it."""
    parts: dict[int, list[int | None]] = field(default_factory=dict)
    """Number of a request → how many samples each of its items has; None: one, and no list is wanted back."""
    calls: dict[int, Call] = field(default_factory=dict)
    """Those of a standard protocol, whose items are answered together."""
    given: list[Any] | None = None
    """All waiting samples, as the kit's own preprocess has handed them on."""

    @property
    def waiting(self) -> list[int]:
        """Requests that have no reply yet."""
        return [number for number, reply in enumerate(self.replies) if reply is None]

    def samples_of(self, number: int) -> list[Any]:
        """One request's; one that is not known where a handler's own preprocess has read it."""
        return self.samples.get(number, [None])

    def list_samples(self) -> list[Any]:
        """Of all that wait, in order."""
        return [sample for number in self.waiting for sample in self.samples_of(number)]

    @contextlib.contextmanager
    def isolate(self, number: int, doing: str) -> Iterator[None]:
        """What is raised within fails this request alone; `doing` is the participle of what was done."""
        try:
            yield
        except BaseException as error:
            self.replies[number] = fail(error, doing)


class KitHandler(Task, _find_base()):  # type: ignore[misc]
    """Loads the archive's model as the plan says, and answers batches; a request that fails does so alone.

    An author writes load_model, decode, encode, and collate and split where their defaults are not right
    (Task). `initialize`, `preprocess`, `inference`, `postprocess` and `handle` mean what they mean to
    TorchServe and may be overridden too: they see whole batches without the requests that have failed, and
    what they raise fails the batch.
    """

    loaded: LoadedModel
    records: Sequence[StepRecord] = ()
    """What became of each step of the load."""
    seconds = 0.0
    """That the load took."""
    _metrics = BatchMetrics("")

    def initialize(self, context: Any) -> None:
        """Load the model; RuntimeError with the cause when it cannot be loaded as planned."""
        # TorchServe silences nothing below INFO, and one line a load is worth having.
        logger.setLevel(logging.INFO)
        end_with_launcher()
        self.context, name = context, context.model_name
        try:
            directory = Path(context.system_properties["model_dir"])
            definition = read_folder(directory)
            name = definition.name
            self.configure(definition, directory)
            self.load(read_options(definition, os.environ))
        except LoadError as error:
            log("load_failed", name, step=getattr(error, "step", "read"), cause=error.cause, fix=error.fix)
            # TorchServe answers RuntimeError with an orderly 500 for the load; other types kill the worker.
            raise RuntimeError(str(error)) from error
        try:
            self._metrics = BatchMetrics(name, os.environ.get(FOLDER, ""))
        except OSError as problem:  # a full disk: no reason not to serve
            log("metrics_failed", name, cause=str(problem))
        self.initialized = True
        steps = [asdict(record) for record in self.records]
        log("loaded", name, seconds=self.seconds, steps=steps, work=asdict(self.loaded.work))

    def load_weights(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with the values of the archive's model.safetensors, in eval mode; LoadError where a name
        or a shape does not fit."""
        return load_weights(model, self.model_dir).eval()

    def load(self, options: LoadOptions) -> None:
        """Run all load steps; StepError when one cannot be done as planned."""
        started = time.monotonic()
        # First: a backend may compute wrongly when the OpenMP thread count changes after its load.
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        # One model at a time runs in a worker: more inter-op threads would only compete for its cores.
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
        state = LoadState(task=self, options=options, loader=open_loader(options.backend))
        records = run_steps(state)
        self.take(state.finish(), records, round(time.monotonic() - started, 3))

    def take(self, loaded: LoadedModel, records: Sequence[StepRecord] = (), seconds: float = 0.0) -> None:
        """Answer by a model that is loaded."""
        self.loaded, self.model, self.records, self.seconds = loaded, loaded.model, records, seconds
        self.efficiency, self.phases, self.profiler = PackingEfficiency(), Phases(), Profiler()
        self.model_seconds = 0.0
        """All the time inside the model, apart from decoding, collating and encoding."""

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Answer one batch; also the describe call, which TorchServe sends as a batch of one."""
        self.context = context
        headers = [context.get_all_request_header(position) for position in range(len(data))]
        if is_describe(data, headers):
            return [to_json(self._describe(headers[0]))]
        waits_s = [*map(find_wait_s, headers)]
        tokens, computed = self.efficiency.tokens, self.efficiency.computed_tokens
        replies = self.answer([read_request(row, said) for row, said in zip(data, headers, strict=True)])
        self._metrics.observe(
            waits_s, self.phases.last_s, tokens=self.efficiency.tokens - tokens,
            computed_tokens=self.efficiency.computed_tokens - computed,
        )  # fmt: skip
        return [self._send(context, *one) for one in zip(range(len(data)), replies, headers, strict=True)]

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply to each, in order."""
        began, in_model, batch = time.perf_counter(), self.model_seconds, Batch([None] * len(requests))
        self._batch, read_s, opened = batch, 0.0, {}
        for number, request in enumerate(requests):
            with batch.isolate(number, "read"):
                opened[number] = open_form(request)
                opened[number].check_content_type()
                if request.protocol:
                    self._check_protocol(request)
        try:
            inputs = self.preprocess([opened[number] for number in batch.waiting]) if batch.waiting else None
            read_s = time.perf_counter() - began
            outputs = self.inference(inputs) if batch.waiting else None
            self._finish(batch, self.postprocess(outputs) if batch.waiting else [])
        except BaseException as error:
            failed = fail(error, "answered")
            self._log_batch(failed, len(requests))
            batch.replies = [reply or failed for reply in batch.replies]
        self.phases.count(
            len(requests),
            read_s=read_s,
            model_s=self.model_seconds - in_model,
            whole_s=time.perf_counter() - began,
        )
        return [reply for reply in batch.replies if reply is not None]

    def preprocess(self, data: Sequence[Request]) -> Any:
        """Requests → samples, in order, of those that can be read and that the batch has time for."""
        batch = self._batch
        costs = {}
        for number, request in zip(batch.waiting, data, strict=True):
            with batch.isolate(number, "read"):
                decoded = self._decode_items(number, request)
                batch.parts[number] = [len(one) if isinstance(one, list) else None for one in decoded]
                samples = [sample for one in decoded for sample in (one if isinstance(one, list) else [one])]
                batch.samples[number], costs[number] = samples, self._weigh(samples)
        for number, rejected in zip(costs, self.loaded.work.admit([*costs.values()]), strict=True):
            batch.replies[number] = fail(rejected, "read") if rejected else None
        batch.given = batch.list_samples()
        return batch.given

    def _check_protocol(self, request: Request) -> None:
        if request.form:
            raise BadRequest(415, "this address takes JSON, and no form; /predictions does")
        if type(self).preprocess is not KitHandler.preprocess:
            raise BadRequest(404, "the model's own preprocess reads /predictions alone")

    def _decode_items(self, number: int, request: Request) -> list[Any]:
        """As `decode` has each: one, or all of a standard protocol's request; BadRequest names the item."""
        if not request.protocol:
            return [self.decode(request)]
        call = open_call(request, name=self.definition.name, most=max(MOST_ITEMS, self.max_inputs))
        self._batch.calls[number], began, decoded = call, time.perf_counter(), []
        for place, item in enumerate(call.items):
            if time.perf_counter() - began > DECODE_S:
                raise BadRequest(413, f"item {place}: all before it took {DECODE_S:g} s to read; send fewer")
            try:
                decoded.append(self.decode(item))
            except BadRequest as error:
                raise BadRequest(error.status, f"item {place}: {error}", cause=error.cause) from error
        return decoded

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Samples → an output for each, float32, by runs of the warmed shapes; where one fails, each request
        alone. What is no list, of an overridden preprocess, is the model's input as it is."""
        batch = self._batch
        if not isinstance(data, list):
            outputs = self._compute(as_arguments(data))
            return self.split(outputs, batch.list_samples())
        if data is not batch.given:
            return self._infer(data)
        try:
            return self._infer(data)
        except BaseException as error:
            failed = fail(error, "answered")
        waiting = batch.waiting
        if len(waiting) == 1:
            batch.replies[waiting[0]] = failed
            return []
        self._log_batch(failed, len(waiting))
        outputs = []
        for number in waiting:
            with batch.isolate(number, "answered"):
                outputs += self._infer(batch.samples[number])
        return outputs

    def postprocess(self, data: Any) -> list[Any]:
        """Outputs of samples → what the JSON of each request holds, in order."""
        batch, answers = self._batch, []
        samples = batch.list_samples()
        outputs = data if isinstance(data, list) else self.split(data, samples)
        if len(outputs) != len(samples):
            raise ValueError(f"{len(outputs)} outputs for {len(samples)} samples")
        left = iter(outputs)
        for number in batch.waiting:
            pairs = [(next(left), sample) for sample in batch.samples_of(number)]
            with batch.isolate(number, "answered"):
                encoded = iter([self.encode(output, sample) for output, sample in pairs])
                parts = batch.parts.get(number, [None])
                items = [next(encoded) if one is None else [*islice(encoded, one)] for one in parts]
                answers.append(items if number in batch.calls else items[0])
        return answers

    def _finish(self, batch: Batch, answers: Sequence[Any]) -> None:
        if len(answers) != len(batch.waiting):
            raise ValueError(f"{len(answers)} answers for {len(batch.waiting)} requests")
        for number, answer in zip(batch.waiting, answers, strict=True):
            with batch.isolate(number, "answered"):
                if call := batch.calls.get(number):
                    body, headers = call.render(answer, batch.samples_of(number))
                    batch.replies[number] = Reply(status=200, body=body, headers=headers)
                else:
                    batch.replies[number] = Reply(status=200, body=to_json(answer))

    def _log_batch(self, failed: Reply, requests: int) -> None:
        log("batch_failed", self.definition.name, requests=requests, cause=failed.cause, trace=failed.trace)

    def _weigh(self, samples: Sequence[Any]) -> int:
        """What a request costs: tokens as they go through the model; samples where all have one size."""
        return sum(max(1, self.layout.fit_length(self.measure(sample))) for sample in samples)

    def _infer(self, samples: Sequence[Any]) -> list[Any]:
        """An output for each, in order."""
        result: list[Any] = [None] * len(samples)
        needed = [self.measure(sample) for sample in samples]
        for run in self.layout.plan_runs(needed):
            for position, output in zip(run.samples, self._run(run, samples), strict=True):
                result[position] = output
            self.efficiency.count(run, needed)
        return result

    def _run(self, run: Run, samples: Sequence[Any]) -> list[Any]:
        outputs = self._compute(self.loaded.to_inputs(run, samples))
        return self.split(outputs, [samples[position] for position in run.samples])

    def _compute(self, inputs: Inputs) -> Any:
        began = time.perf_counter()
        with self.profiler.watching():
            outputs = self.loaded.run(inputs)
        self.model_seconds += time.perf_counter() - began
        if not is_finite(outputs):
            raise BadRequest(500, "the model's outputs are no numbers (NaN or infinite)")
        return outputs

    def _describe(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """The account of what is in effect; with a wish (profiling.HEADER), also what becomes of it."""
        wish, rejected = find_wish(headers), ""
        if wish and wish != RESULT:
            try:
                self.profiler.ask(wish)
            except BadRequest as error:
                rejected = str(error)
        profile = {"profile": {**self.profiler.describe(), "rejected": rejected}} if wish else {}
        return {**self.describe(), **profile}

    def describe(self) -> dict[str, Any]:
        """What is really in effect in this process; docs/verify.md has each item."""
        loaded, options, definition = self.loaded, self.loaded.options, self.definition
        own = loaded.backend.distribution
        versions = read_versions(("torch", "safetensors", *self.libraries, *([own] if own else [])))
        return {
            "model": definition.name,
            "archive_id": identify_folder(self.model_dir),
            "weights": definition.weights,
            "notes": list(definition.notes),
            "precision": options.precision,
            "freeze": self.freeze,
            "recipe": loaded.facts.get("recipe"),
            "limits": dict(self.limits),
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
            "packing": self.describe_packing(),
            "shapes": [asdict(shape) for shape in self.layout.list_shapes()],
            "packing_efficiency": self.efficiency.describe(),
            "phases": self.phases.describe(),
            "work": asdict(loaded.work),
        }

    def _send(self, context: Any, position: int, reply: Reply, headers: Mapping[str, Any]) -> bytes:
        """Status and body of one item of the batch. HAProxy's log has a line for each failure; one that is no
        fault of the request leaves where it comes from here."""
        try:
            _set_status(context, position, reply)
        except Exception as error:
            reply = fail(error, "answered")
            with contextlib.suppress(Exception):
                _set_status(context, position, reply)
        if reply.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            log(
                "request_failed", self.definition.name, request=headers.get("x-request-id", ""),
                trace_id=find_trace_id(headers), status=reply.status, cause=reply.cause, trace=reply.trace,
            )  # fmt: skip
        return reply.body


def is_describe(rows: Sequence[Mapping[str, Any]], headers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the batch is the management API's describe call, which no holder of the inference token can
    make, whatever headers a prediction brings (ManagementRequestHandler.handleDescribeModel)."""
    if len(rows) != 1 or rows[0] or headers[0].get("describe") != "True":
        return False
    return not PREDICTION_HEADERS & {name.lower() for name in headers[0]}


def find_trace_id(headers: Mapping[str, Any]) -> str:
    """Of the client's trace (W3C Trace Context: version-trace-parent-flags); empty where there is none."""
    parts = str(headers.get("traceparent", "")).split("-")
    return parts[1] if len(parts) == 4 else ""


def _set_status(context: Any, position: int, reply: Reply) -> None:
    context.set_response_content_type(position, reply.headers.get(CONTENT_TYPE, JSON))
    for name, value in reply.headers.items():
        if name != CONTENT_TYPE:
            context.set_response_header(position, name, value)
    if reply.status != http.HTTPStatus.OK:
        # In ASCII and on one line, as a header must be.
        context.set_response_header(position, CAUSE, json.dumps(reply.cause)[1:-1])
        phrase = http.HTTPStatus(reply.status).phrase
        context.set_response_status(code=reply.status, phrase=phrase, idx=position)
