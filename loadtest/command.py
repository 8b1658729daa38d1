"""What the commands share: options, where servers are brought up, the way to a report.

An option that is a setting has its meaning from config/knobs; make gives empty values for what is not set.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from config.knobs.table import find
from handlers.backends.catalogue import find_set, name_store
from loadtest.bench import Bench, open_bench
from loadtest.drivers import ROOT, parse_generators
from loadtest.report import Result, render_markdown, write_report
from loadtest.results import RESULTS, Kept, find_result
from loadtest.servers.base import Site

FIRST_PORT = 19080
"""Of the servers that an experiment starts; each has a hundred."""


def say(line: str) -> None:
    """At once, whatever standard output is."""
    print(line, flush=True)


class Option(click.Option):
    """An empty value is none: make gives all of its own."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        return super().process_value(ctx, self.get_default(ctx) if value == "" else value)


def option(name: str, **known: Any) -> Callable[[Callable], Callable]:
    """A setting, by its name in make."""
    knob = find(name)
    known.setdefault("help", knob.meaning)
    return click.option(knob.option, name.lower(), cls=Option, **known)


def options(*names: str, **known: Any) -> Callable[[Callable], Callable]:
    """Several settings that are texts."""

    def add(command: Callable) -> Callable:
        for name in reversed(names):
            command = option(name, default="", **known)(command)
        return command

    return add


ABOVE_0 = click.FloatRange(min=0, min_open=True)
RESULTS_OPTION = click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="where results are kept"
)
STORE = click.option("--store", default="", help="folder with the archives")
PORT = click.option("--first-port", type=click.IntRange(1024, 60000), default=FIRST_PORT,
                    help="of the servers that are started")  # fmt: skip
DURATION = option("DURATION", type=ABOVE_0, default=None)


@contextlib.contextmanager
def open_site(store: str = "", first_port: int = FIRST_PORT) -> Iterator[Site]:
    """A scratch folder that is gone when the command ends."""
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        folder = Path(store or ROOT / name_store(find_set())).resolve()
        yield Site(store=folder, folder=Path(name), first_port=first_port, say=say)


def call(*arguments: str) -> None:
    """One of the kit's own commands, whose words are shown; its failure ends this one."""
    if code := subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=False).returncode:
        sys.exit(code)


def build_store(model: str, store: str, *more: str) -> None:
    """With random weights, in every precision: what is measured is served in several."""
    known = ["--models", model, "--weights", "random", *(["--store", store] if store else [])]
    call("models", "build", *known, "--precision", "fp32 bf16 int8", *more)


def finish(result: Result, kept: Kept) -> int:
    """The report, and whether all verdicts are good."""
    page = write_report(result, kept)
    say(f"\n{render_markdown(result, kept, pictures=False)}\n\nreport: {page}")
    return 0 if result.passed else 1


def measure(
    kind: str,
    name: str,
    asked: Mapping[str, Any],
    run: Callable[[Bench], Result],
    given: Mapping[str, Any],
    site: Site | None = None,
) -> int:
    """One experiment from its begin, or where it was interrupted (RESUME), to its report; the exit code."""
    with contextlib.ExitStack() as stack:
        site = site or stack.enter_context(open_site())
        resume, results = given.get("resume"), given["results"]
        folder = find_result(resume, results, name=name) if resume else None
        generators = parse_generators(given.get("processes", ""))
        bench = stack.enter_context(
            open_bench(kind, name, asked, site, results=results, resume=folder, generators=generators)
        )
        result = run(bench)
    return finish(result, bench.kept)
