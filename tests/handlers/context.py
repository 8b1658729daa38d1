"""TorchServe's own context around one batch, so that a handler meets what it meets in a worker.

`rows_and_context` takes requests as TorchServe's frontend writes them (InferenceRequestHandler.parseRequest)
and sends them through ts/service.py, which makes rows and headers of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ts.context import Context, RequestProcessor
from ts.service import Service

PREDICTION = {"url_path": "", "explain": "False"}
"""What /predictions puts among the client's headers."""


class FakeContext(Context):
    """TorchServe's, without headers, for any batch; `statuses` and `content_types` are what was set."""

    def __init__(self, directory: Path, *, describe: bool = False) -> None:
        super().__init__("fake", str(directory), None, 1, None, "0")
        self.request_processor = Processors({"describe": "True"} if describe else {})
        self.request_ids = {position: f"id-{position}" for position in range(99)}

    @property
    def statuses(self) -> dict[int, tuple[int, str | None]]:
        return {
            position: (one.get_response_status_code(), one.get_response_status_phrase())
            for position, one in sorted(self.request_processor.items())
            if one.get_response_status_code() != 200
        }

    @property
    def content_types(self) -> dict[int, str]:
        found = {position: self.get_response_content_type(position) for position in self.request_processor}
        return {position: kind for position, kind in sorted(found.items()) if kind}


class Processors(dict):
    """One RequestProcessor for each position of a batch, made when it is asked for."""

    def __init__(self, headers: dict[str, Any]) -> None:
        super().__init__()
        self.headers = headers

    def __missing__(self, position: int) -> RequestProcessor:
        self[position] = RequestProcessor(dict(self.headers))
        return self[position]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One request as the frontend hands it to a worker."""

    values: list[tuple[str, str, bytes]] = field(default_factory=list)
    """(name, content type, bytes) of the body, or of each field of a form."""
    headers: dict[str, str] = field(default_factory=dict)
    """As the client wrote them, and what the frontend added."""


def plain(body: bytes, content_type: str = "", *, header: str = "Content-Type", **more: str) -> Sent:
    """A request that is no form: the MIME type without its parameters is the body's content type."""
    said = {header: content_type} if content_type else {}
    value = ("body", content_type.partition(";")[0], body)
    return Sent(values=[value], headers={**said, **PREDICTION, **more})


def form(
    *fields: tuple[str, str, bytes], content_type: str = "multipart/form-data; boundary=x", **more: str
) -> Sent:
    """A form; fields that are no files have no content type of their own."""
    return Sent(values=list(fields), headers={"Content-Type": content_type, **PREDICTION, **more})


def rows_and_context(directory: Path, *sent: Sent) -> tuple[list[dict[str, Any]], FakeContext]:
    """What the handler is called with for a batch of these."""
    batch = [
        {
            "requestId": f"id-{position}".encode(),
            "headers": [
                {"name": name.encode(), "value": value.encode()} for name, value in one.headers.items()
            ],
            "parameters": [
                {"name": name, "contentType": kind, "value": bytearray(value)}
                for name, kind, value in one.values
            ],
        }
        for position, one in enumerate(sent)
    ]
    headers, rows, ids = Service.retrieve_data_for_inference(batch)
    context = FakeContext(directory)
    context.request_processor = dict(enumerate(headers))
    context.request_ids = ids
    return rows, context
