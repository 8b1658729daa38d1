"""The thin layer that makes a Classifier a TorchServe handler; another server needs another such file.

Protocol: ts/model_loader.py calls `initialize(context)` once and `handle(data, context)` per batch; a list
as long as the batch must come back, and only `set_response_status` gives one item its own status.
"""

from __future__ import annotations

import contextlib
import http
import logging
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from handlers.shared.classifier import Classifier
from handlers.shared.definition import read_definition
from handlers.shared.errors import LoadError, RequestError
from handlers.shared.log import log, logger
from handlers.shared.options import read_options
from handlers.shared.process import end_with_launcher
from handlers.shared.profiling import RESULT, find_wish
from handlers.shared.replies import Reply, fail, to_json
from handlers.shared.rows import is_describe, read_body
from handlers.shared.runtime import ModelRuntime, load_runtime
from handlers.shared.shapes import Fill

JSON = "application/json"
METRIC_SECONDS = 1.0
TOKENS_METRIC = "TextTokens"
COMPUTED_METRIC = "TextTokensComputed"


class FillReport:
    """Adds the texts' own tokens and those computed to TorchServe's counters: Prometheus divides them."""

    def __init__(self) -> None:
        self._sent = Fill()
        self._next = 0.0

    def send(self, fill: Fill, metrics: Any) -> None:
        """At most once in METRIC_SECONDS, because each metric is a line that TorchServe parses."""
        now = time.monotonic()
        if now < self._next or fill.computed_tokens == self._sent.computed_tokens:
            return
        self._next = now + METRIC_SECONDS
        metrics.add_counter(TOKENS_METRIC, fill.tokens - self._sent.tokens)
        metrics.add_counter(COMPUTED_METRIC, fill.computed_tokens - self._sent.computed_tokens)
        self._sent = replace(fill)


class TorchServeHandler(Classifier):
    """Base of the handler classes that TorchServe finds in an archive."""

    runtime: ModelRuntime

    def initialize(self, context: Any) -> None:
        """Load the model; RuntimeError with the cause when it cannot be loaded as asked."""
        # TorchServe silences nothing below INFO, and one line a load is worth having.
        logger.setLevel(logging.INFO)
        end_with_launcher()
        name = context.model_name
        try:
            definition = read_definition(Path(context.system_properties["model_dir"]))
            name = definition.name
            self.configure(definition)
            options = read_options(definition, os.environ)
            self.runtime = load_runtime(self, options)
        except LoadError as error:
            log("load_failed", name, step=getattr(error, "step", "read"), cause=error.cause, cure=error.cure)
            # TorchServe answers RuntimeError with an orderly 500 for the load; other types kill the worker.
            raise RuntimeError(str(error)) from error
        self.fill_report = FillReport()
        steps = [asdict(record) for record in self.runtime.records]
        log("loaded", name, seconds=self.runtime.seconds, steps=steps, work=asdict(self.runtime.work))

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Answer one batch; also the describe call, which TorchServe sends as a batch of one."""
        headers = [context.get_all_request_header(position) for position in range(len(data))]
        if is_describe(data, headers):
            return [to_json(self._describe(find_wish(headers[0])))]
        bodies = [read_body(row, said) for row, said in zip(data, headers, strict=True)]
        replies = self.runtime.predict(bodies)
        answers = [self._send(context, position, reply) for position, reply in enumerate(replies)]
        self._report_fill(context)
        return answers

    def _describe(self, wish: str) -> dict[str, Any]:
        """The account of what is in effect; with a wish, also what becomes of it."""
        profiler, refused = self.runtime.profiler, ""
        if wish and wish != RESULT:
            try:
                profiler.ask(wish)
            except RequestError as error:
                refused = str(error)
        profile = {"profile": {**profiler.describe(), "refused": refused}} if wish else {}
        return {**self.runtime.describe(), **profile}

    def _send(self, context: Any, position: int, reply: Reply) -> bytes:
        """Status and body of one item of the batch, and the one line a failure leaves in the log."""
        try:
            _set_status(context, position, reply)
        except Exception as error:
            reply = fail(error, "answered")
            with contextlib.suppress(Exception):
                _set_status(context, position, reply)
        if reply.status != http.HTTPStatus.OK:
            facts: dict[str, Any] = {"status": reply.status, "cause": reply.cause}
            if reply.trace:
                facts["trace"] = reply.trace
            log("request_failed", self.definition.name, request=context.get_request_id(position), **facts)
        return reply.body

    def _report_fill(self, context: Any) -> None:
        """Counters are no reason to lose a batch that is answered."""
        try:
            self.fill_report.send(self.runtime.fill, context.metrics)
        except Exception as error:
            log("metrics_failed", self.definition.name, cause=f"{type(error).__name__}: {error}")


def _set_status(context: Any, position: int, reply: Reply) -> None:
    context.set_response_content_type(position, JSON)
    if reply.status != http.HTTPStatus.OK:
        phrase = http.HTTPStatus(reply.status).phrase
        context.set_response_status(code=reply.status, phrase=phrase, idx=position)
