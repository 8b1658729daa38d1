"""`python -m loadtest.harm`: does harm to a server of its own, and says which promises held."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.harm.experiments import EXPERIMENTS, Experiment
from loadtest.harm.row import Harm, Seen, judge, make_row, render_table, render_words
from loadtest.harm.site import Site
from loadtest.results import make_results_folder
from loadtest.servers import ROOT
from server.errors import ServerError
from server.start import Interrupted, catch_signals

FIRST_PORT = 19280
RESULTS = ROOT / "run" / "harm"
PRECISIONS = ("fp32", "bf16", "int8")


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 every promise held, 1 one was broken or nothing could be tried."""
    options = parse_arguments(arguments)
    if options.check:
        return 0
    rows: list[Harm] = []
    try:
        with catch_signals():
            do_harm(options, rows)
    except (LoadTestError, ServerError) as error:
        print(*render_table(rows), f"error: {error}", sep="\n", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print(*render_table(rows), "stopped", sep="\n", file=sys.stderr)
        return signal.exit_code
    print("", *render_table(rows), sep="\n")
    return 1 if any(row.broken for row in rows) else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """All experiments by default."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.harm", description=__doc__)
    names = [one.name for one in EXPERIMENTS]
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"{', '.join(names)} (all)")
    add_options(parser, RESULTS)
    options = parser.parse_args(arguments)
    for name in options.experiments:
        if name not in names:
            parser.error(f"EXPERIMENT must be one of {', '.join(names)}: got {name}")
    return options


def add_options(parser: argparse.ArgumentParser, results: Path) -> None:
    """What every command needs that starts a server to harm it."""
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)
    parser.add_argument("--store", type=Path, default=ROOT / "model-store", help="folder with the archives")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help=f"and the four after it ({FIRST_PORT})")
    parser.add_argument("--results", type=Path, default=results, help="folder to keep results in")
    parser.add_argument("--check", action="store_true", help="look at these values and do nothing")


def do_harm(options: argparse.Namespace, rows: list[Harm]) -> None:
    """Each experiment in turn; its row is kept as soon as it is known, whatever becomes of the next one."""
    chosen = [one for one in EXPERIMENTS if not options.experiments or one.name in options.experiments]
    kept = make_results_folder(options.results)
    print(f"starting the kit with both models in {options.precision}; results and logs: {kept}", flush=True)
    with Site(kept / "server", options.store, port=options.port, precision=options.precision) as site:
        for experiment in chosen:
            rows.append(harm_and_keep(site, experiment, kept))


def harm_and_keep(site: Site, experiment: Experiment, kept: Path) -> Harm:
    """Print as it goes: some take a minute."""
    print(f"\n{experiment.name}: {experiment.title}", flush=True)
    if site.ensure():
        print("  the server was started again first", flush=True)
    began = time.monotonic()
    row = harm(site, experiment)
    kinds = ", ".join(f"{count} × {kind}" for kind, count in row.kinds.items())
    summary = f"{kinds}; {time.monotonic() - began:.0f} s"
    print(*(f"  {line}" for line in (*render_words(row), summary)), sep="\n", flush=True)
    with (kept / f"{row.experiment}.json").open("x", encoding="utf-8") as file:
        json.dump(asdict(row), file, indent=1, ensure_ascii=False)
    return row


def harm(site: Site, experiment: Experiment) -> Harm:
    """Look, do it, wait for the canaries, look again, judge."""
    site.forget_peaks()
    before = site.look()
    seen = run_anyhow(experiment, site)
    again_s = site.time_canaries()
    row = make_row(experiment.name, seen, before, site.look(), again_s)
    return judge(row, experiment.promise)


def run_anyhow(experiment: Experiment, site: Site) -> Seen:
    """A server that is gone may end an experiment, never the command."""
    try:
        return experiment.run(site)
    except (OSError, LoadTestError, ServerError) as problem:
        return Seen(outcomes=(), faults=(f"could not go on: {type(problem).__name__}: {problem}",))


if __name__ == "__main__":
    sys.exit(main())
