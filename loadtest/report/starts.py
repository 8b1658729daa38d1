"""The section of `make ladder RUNGS=starts`: is each engine ready in time, and as quick at once as later?"""

from __future__ import annotations

from loadtest.experiments.ladder.asked import list_asked_rungs
from loadtest.experiments.ladder.load import SINGLE_USERS
from loadtest.experiments.ladder.starts import judge, list_starts
from loadtest.report.rungs import NAMES, list_weights
from loadtest.report.section import Section, make_doubts
from loadtest.report.targets import make_verdicts
from loadtest.report.words import describe_host
from loadtest.results.kept import Kept
from loadtest.trials.validity import find_doubts

HOW = (
    f"Each server is started alone, and asked by {SINGLE_USERS} users in a closed loop as soon as it is "
    "ready, verified before and after. Start to ready is from the birth of the first worker's process to the "
    "last right answer. Quarters are of each start's requests, those of all starts taken together; the "
    "interval is by bootstrap over stretches of them."
)


def make_starts_section(kept: Kept) -> Section:
    """Finished or not."""
    verdicts, timing = judge(kept), kept.asked["timing"]
    series = [one.series for rung in list_asked_rungs(kept) for one in list_starts(kept, rung)]
    return Section(
        title=f"Starts of {NAMES[kept.asked['model']]}'s engines",
        notes=(describe_host(kept), f"{timing['repeats']} starts of each, {timing['seconds']:g} s each."),
        tables=(make_verdicts(verdicts),),
        findings=tuple(doubt for one in series for doubt in make_doubts(one.system, find_doubts(one))),
        whole=bool(verdicts) and all(one.figure for one in verdicts),
        closing=(HOW, *list_weights(kept)),
    )
