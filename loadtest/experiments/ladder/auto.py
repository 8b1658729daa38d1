"""What BACKEND=auto with PRECISION=auto takes, beside the fastest engine and precision over REST."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.engines import name_variant
from handlers.engines.backend import AUTO
from loadtest.experiments.ladder.rows import Row, read_ladder
from loadtest.experiments.ladder.settings import find_engine
from loadtest.results.kept import RESULTS, Kept
from loadtest.results.ratios import invert, multiply
from loadtest.results.stats import Interval
from loadtest.systems.fleet import Site
from loadtest.systems.kit import write_plan
from loadtest.systems.timings import take_timings
from loadtest.trials.block import Verdict

TIMINGS = RESULTS.parent / "timings-engines.json"
"""Kept for the next time: what is resumed must have been asked alike."""
ARGUMENTS = ("--backend", AUTO, "--precision", AUTO)
LEAST = 0.97
"""Of the fastest one's rate: a tie goes to the first engine, and a less exact precision must win by 5 %."""


def choose_auto(model: str, site: Site) -> dict[str, str]:
    """Engine and precision as the plan names them, with its reason; takes timings of all that are there."""
    site.say(f"{model}: timing each engine in each precision, for what auto takes (kept in {TIMINGS.name})")
    take_timings(model, ARGUMENTS, site.store, TIMINGS)
    folder, port = site.place("auto")
    arguments = [*ARGUMENTS, "--model-store", str(site.store), "--timings", str(TIMINGS)]
    one = write_plan(folder, port=port, model=model, arguments=arguments).models[model]
    variant = name_variant(str(one.engine.value), str(one.precision.value))
    return {"variant": variant, "reason": one.precision.reason}


def judge_auto(kept: Kept, rows: Sequence[Row]) -> Verdict | None:
    """Its rate to that of the fastest; None where it was not asked, or is not among what was measured."""
    auto = kept.asked.get("auto")
    by_variant = {_name(row): row for row in rows}
    if auto is None or auto["variant"] not in by_variant:
        return None
    chosen, measured = by_variant[auto["variant"]], [row for row in rows if row.rate]
    fastest = max(measured, key=lambda row: row.rate.value if row.rate else 0.0, default=None)
    if fastest is None or chosen.rate is None:
        return Verdict(what=f"auto, {auto['variant']}", why="it has no figure")
    return Verdict(
        what=f"auto, {auto['variant']}, to the fastest, {fastest.rung.label}",
        figure=_compare(kept, chosen, fastest),
        unit="×",
        limit=LEAST,
        why=auto["reason"],
    )


def _name(row: Row) -> str:
    return name_variant(find_engine(row.rung.settings), row.rung.settings.precision)


def _compare(kept: Kept, chosen: Row, fastest: Row) -> Interval | None:
    """In a block that has both, else by what both are compared with in the end."""
    if chosen is fastest:
        return Interval(value=1.0, low=1.0, high=1.0)
    ladder = read_ladder(kept)
    pairs = (block.find_ratio(chosen.rung.name, fastest.rung.name) for block in ladder.blocks)
    if found := next((one for one in pairs if one), None):
        return found
    whole = Interval(value=1.0, low=1.0, high=1.0)
    over, under = (whole if row.rung.name == ladder.bottom else row.to_bottom for row in (chosen, fastest))
    return multiply(over, invert(under)) if over and under else None
