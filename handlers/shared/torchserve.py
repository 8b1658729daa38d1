"""The thin layer that makes a Classifier a TorchServe handler; another server needs another such file.

Protocol: ts/model_loader.py calls `initialize(context)` once and `handle(data, context)` per batch; a list
as long as the batch must come back, and only `set_response_status` gives one item its own status.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from handlers.shared.classifier import Classifier
from handlers.shared.definition import read_definition
from handlers.shared.errors import LoadError
from handlers.shared.options import read_options
from handlers.shared.runtime import ModelRuntime, Reply, load_runtime, to_json
from handlers.shared.shapes import Padding

logger = logging.getLogger("cpu_kit")
JSON = "application/json"
METRIC_SECONDS = 1.0
TOKENS_METRIC = "TextTokens"
PADDED_METRIC = "TextTokensPadded"
PHRASES = {
    400: "Bad Request",
    413: "Payload Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    500: "Internal Server Error",
}


class PaddingReport:
    """Adds what was spent on padding to TorchServe's counters, from which Prometheus computes the waste."""

    def __init__(self) -> None:
        self._sent = Padding()
        self._next = 0.0

    def send(self, padding: Padding, metrics: Any) -> None:
        """At most once in METRIC_SECONDS, because each metric is a line that TorchServe parses."""
        now = time.monotonic()
        if now < self._next or padding.padded_tokens == self._sent.padded_tokens:
            return
        metrics.add_counter(TOKENS_METRIC, padding.tokens - self._sent.tokens)
        metrics.add_counter(PADDED_METRIC, padding.padded_tokens - self._sent.padded_tokens)
        self._sent = replace(padding)
        self._next = now + METRIC_SECONDS


class TorchServeHandler(Classifier):
    """Base of the handler classes that TorchServe finds in an archive."""

    runtime: ModelRuntime

    def initialize(self, context: Any) -> None:
        """Load the model; RuntimeError with the cause when it cannot be loaded as asked."""
        # TorchServe silences nothing below INFO, and one line a load is worth having.
        logger.setLevel(logging.INFO)
        name = context.model_name
        try:
            definition = read_definition(Path(context.system_properties["model_dir"]))
            name = definition.name
            self.configure(definition)
            options = read_options(definition, os.environ)
            self.limit(options.limits)
            self.runtime = load_runtime(self, options)
        except LoadError as error:
            _log("load_failed", name, step=getattr(error, "step", "read"), cause=error.cause, cure=error.cure)
            # TorchServe answers RuntimeError with an orderly 500 for the load; other types kill the worker.
            raise RuntimeError(str(error)) from error
        self.padding_report = PaddingReport()
        steps = [asdict(record) for record in self.runtime.records]
        _log("loaded", name, seconds=self.runtime.seconds, steps=steps)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Answer one batch; also the describe call, which TorchServe sends as a batch of one."""
        if _is_describe(data, context):
            return [to_json(self.runtime.describe())]
        replies = self.runtime.predict([_read_body(row) for row in data])
        for position, reply in enumerate(replies):
            _set_status(context, position, reply)
        self.padding_report.send(self.runtime.padding, context.metrics)
        return [reply.body for reply in replies]


def _is_describe(data: list[dict[str, Any]], context: Any) -> bool:
    """The management API's describe call has no parameters; a client's header comes with a body."""
    return len(data) == 1 and not data[0] and context.get_request_header(0, "describe") == "True"


def _read_body(row: dict[str, Any]) -> Any:
    """The body of a plain request, or of a form: its `data` or `body` field, else all its fields."""
    for name in ("data", "body"):
        if name in row:
            return row[name]
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value
        for name, value in row.items()
    }


def _set_status(context: Any, position: int, reply: Reply) -> None:
    context.set_response_content_type(position, JSON)
    if reply.status != 200:
        context.set_response_status(code=reply.status, phrase=PHRASES[reply.status], idx=position)


def _log(event: str, model: str, **facts: Any) -> None:
    logger.info(json.dumps({"cpu_kit": event, "model": model, "pid": os.getpid(), **facts}))
