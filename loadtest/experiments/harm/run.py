"""Does harm to a server of its own, and says which promises held."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from config.rules.requests import PRECISIONS
from loadtest.errors import LoadTestError
from loadtest.experiments.harm.experiments import EXPERIMENTS, Experiment
from loadtest.experiments.harm.row import Harm, Seen, judge, make_row, render_table, render_words
from loadtest.experiments.harm.victim import Victim
from loadtest.results.kept import Kept, start_result, write_json
from loadtest.systems.fleet import Site
from server.errors import ServerError

KIND = "harm"
PRECISION = "fp32"


def check_harm(names: Sequence[str], precision: str) -> None:
    """Judges what was asked for; LoadTestError says what may be."""
    known = [one.name for one in EXPERIMENTS]
    for name in names:
        if name not in known:
            raise LoadTestError(f"EXPERIMENT must be one of {', '.join(known)}: got {name}")
    check_precision(precision)


def check_precision(precision: str) -> None:
    """As the configuration would, but before archives are built for minutes."""
    if precision not in PRECISIONS:
        raise LoadTestError(f"PRECISION must be one of {', '.join(PRECISIONS)}: got {precision}")


def run_harm(site: Site, *, results: Path, names: Sequence[str] = (), precision: str = PRECISION) -> int:
    """Exit code: 0 every promise held, 1 one was broken.

    Each experiment in turn; its row is kept as soon as it is known, whatever becomes of the next one.
    """
    check_harm(names, precision)
    kept = start_result(KIND, KIND, {"experiments": list(names), "precision": precision}, results)
    rows: list[Harm] = []
    site.say(f"results and logs: {kept.folder}")
    try:
        with Victim(settle(site, kept), precision) as victim:
            for experiment in EXPERIMENTS:
                if not names or experiment.name in names:
                    rows.append(harm_and_keep(victim, experiment, kept, site))
    finally:
        if rows:
            site.say("\n".join(["", *render_table(rows)]))
    return 1 if any(row.broken for row in rows) else 0


def settle(site: Site, kept: Kept) -> Site:
    """In the result's folder: the server's logs are evidence."""
    return dataclasses.replace(site, folder=kept.folder)


def harm_and_keep(victim: Victim, experiment: Experiment, kept: Kept, site: Site) -> Harm:
    """Print as it goes: some take a minute."""
    site.say(f"\n{experiment.name}: {experiment.title}")
    if victim.ensure():
        site.say("  the server was started again first")
    began = time.monotonic()
    row = harm(victim, experiment)
    kinds = ", ".join(f"{count} × {kind}" for kind, count in row.kinds.items())
    summary = f"{kinds}; {time.monotonic() - began:.0f} s"
    site.say("\n".join(f"  {line}" for line in (*render_words(row), summary)))
    write_json(kept.folder / f"{row.experiment}.json", dataclasses.asdict(row))
    return row


def harm(victim: Victim, experiment: Experiment) -> Harm:
    """Look, do it, wait for the canaries, look again, judge."""
    victim.forget_peaks()
    before = victim.look()
    seen = run_anyhow(experiment, victim)
    again_s = victim.time_canaries()
    row = make_row(experiment.name, seen, before, victim.look(), again_s)
    return judge(row, experiment.promise)


def run_anyhow(experiment: Experiment, victim: Victim) -> Seen:
    """A server that is gone may end an experiment, never the command."""
    try:
        return experiment.run(victim)
    except (OSError, LoadTestError, ServerError) as problem:
        return Seen(outcomes=(), faults=(f"could not go on: {type(problem).__name__}: {problem}",))
