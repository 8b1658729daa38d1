"""`python -m loadtest.targets`: measures the rows of the table of speed targets and says which are met."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.report import find_doubts, render_goals, render_result
from loadtest.results import keep_result, make_results_folder
from loadtest.rows import ROWS, Row
from loadtest.servers import ROOT
from loadtest.turns import Timing
from server.start import Interrupted, catch_signals

FIRST_PORT = 19080
RESULTS = ROOT / "run" / "targets"


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 all was measured undisturbed and all targets are met, 1 not."""
    options = parse_arguments(arguments)
    if options.check:
        return 0
    try:
        with catch_signals():
            results, failed = run_rows(options)
    except Interrupted as signal:
        print("stopped", file=sys.stderr)
        return signal.exit_code
    print(*render_summary(results, failed), sep="\n")
    missed = any(not goal["met"] for result in results for goal in result["goals"])
    return 1 if failed or missed or any(map(find_doubts, results)) else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Rows are given by name, all by default."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m loadtest.targets", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(names)} (all)")
    parser.add_argument("--store", type=Path, default=ROOT / "model-store", help="folder with the archives")
    parser.add_argument("--seconds", type=float, default=Timing.seconds, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=Timing.warm_up_seconds, help="seconds, each side")
    parser.add_argument("--repeats", type=int, default=Timing.repeats)
    parser.add_argument("--first-port", type=int, default=FIRST_PORT)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to keep results in")
    parser.add_argument("--check", action="store_true", help="look at these values and measure nothing")
    options = parser.parse_args(arguments)
    for name in options.rows:
        if name not in names:
            parser.error(f"TARGET must be one of {', '.join(names)}: got {name}")
    return options


def run_rows(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Results of the rows that could be measured, and the names of the others."""
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
    kept = make_results_folder(options.results)
    results, failed = [], []
    with tempfile.TemporaryDirectory(prefix="kit-bench-") as folder:
        bench = make_bench(options, Path(folder))
        for number, row in enumerate(chosen, start=1):
            print(f"\nrow {number} of {len(chosen)}: {row.name}: {row.title}", flush=True)
            try:
                results.append(measure_row(bench, row, kept))
            except LoadTestError as error:
                print(f"error: {row.name}: {error}", file=sys.stderr, flush=True)
                failed.append(row.name)
    print(f"\nresults: {kept}")
    return results, failed


def make_bench(options: argparse.Namespace, folder: Path) -> Bench:
    """What the rows run on."""
    return Bench(
        store=options.store.resolve(),
        folder=folder,
        timing=Timing(seconds=options.seconds, warm_up_seconds=options.warm_up, repeats=options.repeats),
        report=lambda line: print(line, flush=True),
        first_port=options.first_port,
    )


def measure_row(bench: Bench, row: Row, kept: Path) -> dict[str, Any]:
    """Measure, keep, print."""
    began = time.monotonic()
    with bench.row():
        outcome = row.measure(bench)
    result = keep_result(kept, row, outcome, bench)
    print(*render_result(result), f"  ({time.monotonic() - began:.0f} s)", sep="\n", flush=True)
    return result


def render_summary(results: list[dict[str, Any]], failed: list[str]) -> list[str]:
    """All verdicts once more."""
    lines = [
        f"{result['row']}: {line}"
        for result in results
        for line in (*render_goals(result), *find_doubts(result))
    ]
    return ["", *lines, *(f"{name}: NOT MEASURED, see the error above" for name in failed)]


if __name__ == "__main__":
    sys.exit(main())
