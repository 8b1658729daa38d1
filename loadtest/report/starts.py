"""The section of `make ladder RUNGS=starts`: is each engine ready in time, and as quick at once as later?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadtest.experiments.ladder.asked import list_asked_rungs
from loadtest.experiments.ladder.rungs import Rung
from loadtest.experiments.ladder.starts import MOST_USERS, find_refusal, judge, list_measured, list_starts
from loadtest.report.engines import count_variants
from loadtest.report.rungs import NAMES, list_weights
from loadtest.report.section import Doubt, Section, make_doubts
from loadtest.report.targets import make_verdicts
from loadtest.report.words import describe_host
from loadtest.results.kept import Kept

HOW = (
    "Each server is started alone, verified before and after, and asked in a closed loop as soon as it is "
    f"ready, by as many users as its batches hold, at most {MOST_USERS}. Start to ready is from the birth of "
    "the first worker's process to the last right answer. Quarters are of a start's requests. Java compiles "
    "what it runs in the first of them, whatever the engine: eager, which compiles nothing, tells how much "
    "that is. In place of a 95 % interval stand the least and the most."
)


def make_starts_section(kept: Kept) -> Section:
    """Finished or not."""
    asked, timing = list_asked_rungs(kept), kept.asked["timing"]
    return Section(
        title=f"Starts of {NAMES[kept.asked['model']]}'s engines",
        notes=(describe_host(kept), f"{timing['repeats']} starts of each, {timing['seconds']:g} s each."),
        tables=(make_verdicts(judge(kept)),),
        findings=tuple(doubt for rung in asked for doubt in _list_doubts(kept, rung)),
        whole=len(asked) == count_variants() and _is_done(kept, list_measured(kept)),
        closing=(HOW, *list_weights(kept)),
    )


def _list_doubts(kept: Kept, rung: Rung) -> Iterator[Doubt]:
    """A start that the machine disturbed is left out, and another one made: no figure is INVALID for it."""
    if why := rung.reason or find_refusal(kept, rung):
        yield Doubt(where=rung.label, state=why, invalid=False)
    for one in list_starts(kept, rung):
        for doubt in make_doubts(one.series.system, one.doubts):
            yield replace(doubt, invalid=bool(one.faults))


def _is_done(kept: Kept, rungs: Sequence[Rung]) -> bool:
    """As many starts of each as were asked for, none of them in doubt."""
    good = [sum(not one.doubts for one in list_starts(kept, rung)) for rung in rungs]
    return bool(good) and min(good) >= kept.asked["timing"]["repeats"]
