"""Brings up the servers and references of a row, and keeps what is known of each for the result."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.inprocess import Reference, in_process_reference
from loadtest.servers import Server, kit_server, stock_server, write_plan
from loadtest.sides import Side
from loadtest.starts import VARIANT, Start, read_start
from loadtest.stock import IMAGES, Stock
from loadtest.turns import Report, Timing, Turns, take_turns

PORT_STEP = 10
KEPT_OF_DESCRIBE = (
    *("pid", "archive_id", "weights", "notes", "precision", "load_seconds", "steps", "threads", "versions"),
    *("allocator", "openmp", "self_check", "accuracy", "padding"),
)
EVERYTHING_OFF = (
    *("--precision", "fp32", "--no-ipex", "--no-pinning", "--allocator", "system", "--openmp", "gnu"),
    *("--off", "channels_last,trace,freeze"),
)
"""Eager FP32 with the handler's own preprocessing and shapes."""


@dataclass(kw_only=True)
class Bench:
    """One run of rows. The stack takes down what a row has brought up."""

    store: Path
    """Folder with resnet50.mar and bert.mar."""
    folder: Path
    """For run directories, payloads and variants."""
    timing: Timing
    report: Report
    first_port: int
    places: int = 10
    """Servers that may be up at once: after so many, ports are used again."""
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    facts: dict[str, Any] = field(default_factory=dict)
    """Side → plan and descriptions, of the row that is measured."""
    starts: list[Start] = field(default_factory=list)
    """Of all rows of this run."""
    _places: int = 0

    @contextlib.contextmanager
    def row(self) -> Any:
        """Between rows nothing is up."""
        self.facts = {}
        with contextlib.ExitStack() as self.stack:
            yield

    def stock(
        self, stock: Stock = IMAGES, *, archive: str = "resnet50.mar", name: str = "stock TorchServe"
    ) -> Server:
        """Plain TorchServe with a model of the kit's archive, halted."""
        self.report(f"  starting {name}")
        folder, port = self._place("stock")
        where = self.store / archive
        server = self.stack.enter_context(
            stock_server(folder, port=port, archive=where, stock=stock, name=name)
        )
        server.halt()
        return server

    def kit(self, name: str, model: str, arguments: Sequence[str], *, store: Path | None = None) -> Server:
        """A kit server with one model, verified and halted."""
        self.report(f"  starting {name}")
        folder, port = self._place("kit")
        where = [*arguments, "--model-store", str(store or self.store)]
        server = self.stack.enter_context(kit_server(name, folder, port=port, model=model, arguments=where))
        described = server.describe_workers()
        server.halt()
        self._note(name, server.plan, described)
        start = read_start(server, tuple(arguments) if store is None else (VARIANT, *arguments), described)
        self.starts.append(start)
        self.facts[name]["start"] = dataclasses.asdict(start)
        return server

    def reference(self, name: str, model: str, arguments: Sequence[str], payloads: Path) -> Reference:
        """The in-process reference for the same arguments, waiting."""
        self.report(f"  loading {name}")
        folder, port = self._place("reference")
        where = [*arguments, "--model-store", str(self.store)]
        plan = write_plan(folder, port=port, model=model, arguments=where)
        reference = self.stack.enter_context(
            in_process_reference(name, folder, plan=plan, model=model, payloads=payloads)
        )
        self._note(name, plan, reference.described)
        return reference

    def compare(self, sides: Sequence[Side]) -> dict[str, Turns]:
        """Measure all sides in turn."""
        return take_turns(sides, self.timing, self.report)

    def describe(self, server: Server) -> list[dict[str, Any]]:
        """What a halted server's workers say now."""
        with server.resumed():
            return server.describe_workers()

    def _place(self, kind: str) -> tuple[Path, int]:
        self._places += 1
        folder = self.folder / f"{kind}-{self._places}"
        folder.mkdir(parents=True)
        return folder, self.first_port + self._places % self.places * PORT_STEP

    def _note(self, name: str, plan: Any, described: Sequence[dict[str, Any]]) -> None:
        workers = [{key: one.get(key) for key in KEPT_OF_DESCRIBE} for one in described]
        self.facts[name] = {"plan": dataclasses.asdict(plan), "workers": workers}
