"""A stand-in for ts.context.Context with the calls that the handler makes."""

from __future__ import annotations

from pathlib import Path


class FakeMetrics:
    """Records counters as TorchServe's metrics cache takes them."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, int]] = []

    def add_counter(self, name: str, value: int) -> None:
        self.counted.append((name, value))


class FakeContext:
    """Records the status and content type of each item of a batch."""

    def __init__(self, directory: Path, *, describe: bool = False) -> None:
        self.model_name = "fake"
        self.system_properties = {"model_dir": str(directory)}
        self.describe = describe
        self.metrics = FakeMetrics()
        self.statuses: dict[int, tuple[int, str]] = {}
        self.content_types: dict[int, str] = {}

    def get_request_header(self, position: int, name: str) -> str | None:
        return "True" if self.describe and name == "describe" else None

    def set_response_content_type(self, position: int, value: str) -> None:
        self.content_types[position] = value

    def set_response_status(self, *, code: int, phrase: str, idx: int) -> None:
        self.statuses[idx] = (code, phrase)
