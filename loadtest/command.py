"""What the commands share: settings, options, where servers are brought up, the way to a report."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from config.commands import list_read, render_settings
from config.settings import Settings
from handlers.backends.catalogue import find_set, name_store
from loadtest.bench import Bench, open_bench
from loadtest.drivers import ROOT, parse_generators
from loadtest.errors import LoadTestError
from loadtest.report import Result, render_markdown, write_report
from loadtest.results import RESULTS, Kept, find_result
from loadtest.servers.base import Testbed
from server.processes import find_marked

FIRST_PORT = 19080
"""Of the servers that an experiment starts; each has a hundred."""


def say(line: str) -> None:
    """At once, whatever standard output is."""
    print(line, flush=True)


def settings(*fields: str, serve: bool = False) -> Callable[[Callable], Callable]:
    """Gives a command these fields of the settings as keywords, beside its options; `serve`: load goes to the
    server of RUN_DIR, whatever it serves, and one is started where none runs."""

    def add(command: Callable) -> Callable:
        @click.pass_obj
        @functools.wraps(command)
        def call(found: Settings, *words: Any, **given: Any) -> Any:
            if serve:
                serve_first(found)
            return command(*words, **{field: getattr(found, field) for field in fields}, **given)

        return call

    return add


def choose_model(models: Sequence[str], allowed: Collection[str]) -> str:
    """Of an experiment with one model."""
    if len(models) != 1 or models[0] not in allowed:
        raise LoadTestError(f"MODELS must be one of {', '.join(allowed)}: got {' '.join(models)}")
    return models[0]


ABOVE_0 = click.FloatRange(min=0, min_open=True)
RESULTS_OPTION = click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="where results are kept"
)
STORE = click.option("--store", default="", help="folder with the archives")
PORT = click.option("--first-port", type=click.IntRange(1024, 60000), default=FIRST_PORT,
                    help="of the servers that are started")  # fmt: skip
RESUME = click.option(
    "--resume", default="", help="a result that was cut off, by its folder's name, or latest"
)
PROCESSES = click.option(
    "--processes", default="",
    help="Locust's workers here; remote:N, remote:N@ADDRESS wait for N on others (default: one)",
)  # fmt: skip
BOUND = click.option(
    "--bound", type=ABOVE_0, default=0.05, show_default=True, help="a loss beyond this share is a regression"
)


@contextlib.contextmanager
def open_testbed(store: str = "", first_port: int = FIRST_PORT) -> Iterator[Testbed]:
    """A scratch folder that is gone when the command ends."""
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        folder = Path(store or ROOT / name_store(find_set())).resolve()
        yield Testbed(store=folder, folder=Path(name), first_port=first_port, say=say)


def call(*arguments: str) -> None:
    """One of the kit's own commands, whose words are shown; its failure ends this one."""
    if code := subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=False).returncode:
        sys.exit(code)


def build_store(model: str, store: str, *more: str, weights: str = "random") -> None:
    """In every precision: what is measured is served in several. No weights: as built, else auto."""
    known = [f"MODELS={model}", *([f"WEIGHTS={weights}"] if weights else [])]
    known += [f"MODEL_STORE={store}"] if store else []
    call("models", "build", *known, "--precisions", "bf16 int8", *more)


def serve_first(found: Settings) -> None:
    """Unless a URL is given, or a server runs."""
    if found.url or any(process.is_supervisor for process in find_marked(Path(found.run_dir).resolve())):
        return
    read = {*list_read("serve")}
    given = [f"{name}={value}" for name, value in render_settings(found).items() if name in read]
    call("server", "serve", *given)


def finish(result: Result, kept: Kept) -> int:
    """The report, and whether all verdicts are good."""
    page = write_report(result, kept)
    say(f"\n{render_markdown(result, kept, plots=False)}\n\nreport: {page}")
    return 0 if result.passed else 1


def measure(
    kind: str,
    name: str,
    asked: Mapping[str, Any],
    run: Callable[[Bench], Result],
    given: Mapping[str, Any],
    testbed: Testbed | None = None,
) -> int:
    """One experiment from its begin, or where it was interrupted (--resume), to its report; the exit code."""
    with contextlib.ExitStack() as stack:
        testbed = testbed or stack.enter_context(open_testbed())
        resume, results = given.get("resume"), given["results"]
        folder = find_result(resume, results, name=name) if resume else None
        generators = parse_generators(given.get("processes", ""))
        bench = stack.enter_context(
            open_bench(kind, name, asked, testbed, results=results, resume=folder, generators=generators)
        )
        result = run(bench)
    return finish(result, bench.kept)
