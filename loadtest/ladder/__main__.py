"""`python -m loadtest.ladder`: measures the ladder of a model, resumes one, or makes the report of one."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from config.errors import ConfigError
from config.terminal import print_in_any_locale
from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.ladder.figures import LEAST_REPEATS
from loadtest.ladder.keep import find_folder, keep_targets
from loadtest.ladder.prepare import prepare
from loadtest.ladder.report import read_result, render_text, write_report
from loadtest.ladder.rungs import MODELS
from loadtest.ladder.targets import compare_with_targets
from loadtest.servers import ROOT
from loadtest.turns import Timing
from server.errors import ServerError
from server.start import Interrupted, catch_signals

FIRST_PORT = 20080
PLACES = 60
"""Servers of a whole ladder: none gets the ports of one that is still up."""
TIMING = Timing(seconds=3.75, warm_up_seconds=1.5, repeats=3)
"""BERT's servers need half a minute each to start: with this its ladder takes 25 minutes on two cores."""


def main(arguments: list[str] | None = None) -> int:
    """0 all rungs are valid; 1 some are not, or nothing could be measured."""
    print_in_any_locale()
    options = parse_arguments(arguments)
    try:
        if options.report:
            return report(options)
        with catch_signals():
            return run_ladder(options)
    except (LoadTestError, ServerError, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print(
            "\nstopped: no server is up, finished blocks are kept; go on with RESUME=latest", file=sys.stderr
        )
        return signal.exit_code


def say(line: str) -> None:
    print(line, flush=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Empty values are those of make's unset variables."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.ladder", description=__doc__)
    parser.add_argument("--model", default="", help=" | ".join(MODELS))
    parser.add_argument("--store", type=Path, default=ROOT / "model-store", help="folder with the archives")
    parser.add_argument("--resume", default="", help="a ladder's folder, or latest")
    parser.add_argument("--report", default="", help="make the report of a ladder's folder, or of the latest")
    parser.add_argument("--output", default="", help="of the report: folder for ladder-<model>.md and .png")
    parser.add_argument("--seconds", type=float, default=TIMING.seconds, help="of each turn")
    parser.add_argument(
        "--warm-up", type=float, default=TIMING.warm_up_seconds, help="seconds of each server"
    )
    parser.add_argument("--repeats", type=int, default=TIMING.repeats)
    parser.add_argument("--only", nargs="*", default=[], help="names of rungs, for a trial")
    parser.add_argument("--check", action="store_true", help="look at these values and measure nothing")
    parser.add_argument("--first-port", type=int, default=FIRST_PORT)
    return parser.parse_args(arguments)


def run_ladder(options: argparse.Namespace) -> int:
    """Measure and keep; only look at the options when that is asked."""
    resume, timing = check(options)
    if options.check:
        return 0
    with tempfile.TemporaryDirectory(prefix="kit-ladder-") as name:
        bench = Bench(
            store=options.store.resolve(),
            folder=Path(name),
            timing=timing,
            report=say,
            first_port=options.first_port,
            places=PLACES,
        )
        ladder = prepare(bench, options.model, say, only=options.only, resume=resume)
        minutes = ladder.progress.planned / 60
        say(f"{ladder.folder.name}: {len(ladder.header.blocks)} blocks, about {minutes:.0f} min")
        ladder.run()
    return finish(ladder.folder)


def check(options: argparse.Namespace) -> tuple[Path | None, Timing]:
    """The ladder to go on with, and the timing; before minutes are spent on what gives no figures."""
    if options.model not in MODELS:
        raise LoadTestError(f"MODEL must be one of {', '.join(MODELS)}: got {options.model or 'nothing'}")
    if options.repeats < LEAST_REPEATS:
        raise LoadTestError(f"REPEATS must be at least {LEAST_REPEATS}: got {options.repeats}")
    for name, value in (("SECONDS", options.seconds), ("--warm-up", options.warm_up)):
        if not 0 < value < math.inf:
            raise LoadTestError(f"{name} must be above 0: got {value:g}")
    resume = find_folder(options.resume, options.model) if options.resume else None
    timing = Timing(seconds=options.seconds, warm_up_seconds=options.warm_up, repeats=options.repeats)
    return resume, timing


def finish(folder: Path) -> int:
    """Compare with the targets, print."""
    result = read_result(folder)
    keep_targets(folder, compare_with_targets(result.header.model, result.rows))
    say(
        f"\n{render_text(result)}\n\nkept: {folder.name}; make ladder-report RESULT={folder.name} OUTPUT=docs"
    )
    return 0 if result.is_valid else 1


def report(options: argparse.Namespace) -> int:
    """Print, and write where an output is named."""
    result = read_result(find_folder(options.report, options.model))
    say(render_text(result))
    if options.output:
        say("\n".join(f"written: {file}" for file in write_report(result, Path(options.output))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
