"""Thousands of broken bodies to real workers; none may fail or grow them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from loadtest.experiments.harm.client import Outcome, Request, send_all
from loadtest.experiments.harm.experiments import Experiment
from loadtest.experiments.harm.mutations import Case, draw_cases
from loadtest.experiments.harm.row import Harm, Promise, Seen, render_table
from loadtest.experiments.harm.run import PRECISION, harm, settle
from loadtest.experiments.harm.seeds import Seed, make_seeds
from loadtest.experiments.harm.victim import CANARY_SECONDS, PATIENCE_SECONDS, Victim
from loadtest.experiments.soak import Growth
from loadtest.results.kept import start_result, write_json
from loadtest.systems.fleet import Site

KIND = "fuzz"
BODIES = 5_500
"""Some differ in their headers only; 5,000 different ones are wanted."""
SEED = 7
CLIENTS = 16
"""Fill a batch of 8 for each of two workers."""
WARM_UP = 10
"""Times that every good body is sent first: a worker's memory settles with what it usually does."""
AT_MOST_S = 240.0
"""Leaves a minute of five for drawing bodies and the start."""
GROWTH_PERCENT = 10.0
PROMISE = Promise(kinds=None, again_s=PATIENCE_SECONDS + CANARY_SECONDS)
"""As long as a right answer is waited for; any kind but 5xx, which `send_cases` looks for itself."""
LISTED = 10
"""Kinds of failures that are printed; all are kept."""
SHOWN_CHARACTERS = 200
"""Of an answer; a decoder's complaint may hold the whole body."""
SENT_AGAIN = 50
"""Failures that are sent once more, each alone."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One body that was answered with 5xx, or not at all."""

    origin: str
    got: str
    answer: str
    """The beginning of what was said."""
    alone: str
    """What it got when it was sent again, with no other beside it; empty when it was not."""
    file: str
    """The body."""
    again: str
    """The line that sends it again."""


def run_fuzz(
    site: Site, *, results: Path, bodies: int = BODIES, seed: int = SEED, precision: str = PRECISION
) -> int:
    """Draw, start, warm up, send, look. Exit code: 0 nothing was broken, 1 something was."""
    kept = start_result(KIND, KIND, {"bodies": bodies, "seed": seed, "precision": precision}, results)
    site.say(f"drawing {bodies} bodies with seed {seed}; results and logs: {kept.folder}")
    seeds, failures = make_seeds(), list[Failure]()
    cases = draw_cases(seeds, bodies, seed)
    fuzz = Experiment(
        name=KIND,
        title=f"{bodies} broken bodies",
        run=lambda victim: send_cases(victim, cases, kept.folder, failures),
        promise=PROMISE,
    )
    with Victim(settle(site, kept), precision) as victim:
        warm_up(victim, seeds)
        models = victim.find_models()
        row = harm(victim, fuzz)
    growths = find_growths(row, models)
    row = replace(row, broken=(*row.broken, *find_grown(growths)))
    write_json(kept.folder / f"{KIND}.json", {**asdict(row), "failures": [asdict(one) for one in failures]})
    site.say("\n".join(["", *map(render_growth, growths), *render_failures(failures), *render_table([row])]))
    return 1 if row.broken else 0


def warm_up(victim: Victim, seeds: Sequence[Seed]) -> None:
    """Whatever these are answered: the fuzz judges."""
    good = [victim.ask(one.model, one.body, one.content_type) for one in seeds]
    send_all(good * WARM_UP, victim.port, clients=CLIENTS, keep=True, at_most_s=AT_MOST_S / 4)


def send_cases(victim: Victim, cases: Sequence[Case], folder: Path, failures: list[Failure]) -> Seen:
    """All of them over kept connections; what failed once more alone, and kept in `failures`."""
    requests = [replace(case.request, token=victim.token) for case in cases]
    outcomes = send_all(requests, victim.port, clients=CLIENTS, keep=True, at_most_s=AT_MOST_S)
    for place in (place for place, outcome in enumerate(outcomes) if is_failure(outcome)):
        alone = victim.send(requests[place]).kind if len(failures) < SENT_AGAIN else ""
        failures.append(keep_failure(folder, len(failures), cases[place], outcomes[place], alone))
    faults = []
    if len(outcomes) < len(cases):
        faults.append(f"only {len(outcomes)} of {len(cases)} bodies could be sent within {AT_MOST_S:g} s")
    if failures:
        faults.append(f"{len(failures)} bodies were not answered, or with 5xx, promised: none")
    return Seen(outcomes=outcomes, faults=tuple(faults))


def is_failure(outcome: Outcome) -> bool:
    """A client's fault is 4xx, whatever it sent."""
    return bool(outcome.failure) or outcome.status >= 500


def find_growths(row: Harm, models: Mapping[int, str]) -> list[Growth]:
    """Of the workers that lived through it."""
    return [
        Growth(model=models.get(int(pid), ""), pid=int(pid), early_mib=early, late_mib=late)
        for pid, (early, late) in row.resident_mib.items()
        if late is not None
    ]


def find_grown(growths: Sequence[Growth]) -> Iterator[str]:
    """Each says what, got, and what was promised."""
    for one in growths:
        if one.percent > GROWTH_PERCENT:
            yield f"{render_growth(one)}, promised: {GROWTH_PERCENT:g} %"


def render_growth(one: Growth) -> str:
    return (
        f"{one.model} worker {one.pid} grew from {one.early_mib:.0f} to {one.late_mib:.0f} MiB "
        f"({one.percent:+.1f} %)"
    )


def keep_failure(folder: Path, number: int, case: Case, outcome: Outcome, alone: str) -> Failure:
    """Its body as a file, and how to send it again."""
    file = folder / "failures" / f"{number:04d}-{case.origin}.body"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(case.request.body)
    return Failure(
        answer=outcome.body[:SHOWN_CHARACTERS].decode(errors="replace"),
        origin=case.origin,
        got=outcome.kind,
        alone=alone,
        file=file.name,
        again=render_curl(case.request, file),
    )


def render_curl(request: Request, file: Path) -> str:
    """With $TOKEN and $URL to be filled in; `make status` says where they are."""
    # An empty type has to be said so: curl's own default is a form's.
    headers = [("Content-Type", request.content_type), *request.headers]
    shown = " ".join(f"-H '{name}: {value}'" if value else f"-H '{name}:'" for name, value in headers)
    return (
        f'curl -i -H "Authorization: Bearer $TOKEN" {shown} --data-binary @{file.name} "$URL{request.path}"'
    )


def render_failures(failures: Sequence[Failure]) -> list[str]:
    """How many of each origin, the most first, with the first one of it."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for one in failures:
        groups.setdefault((one.origin, one.got), []).append(one)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = []
    for (origin, got), (first, *others) in ordered[:LISTED]:
        alone = f" (alone: {first.alone})" if first.alone else ""
        lines.append(f"  {1 + len(others)} × {origin}: {got}{alone}: {first.again}")
        lines.append(f"    {' '.join(first.answer.split())}")
    if len(ordered) > LISTED:
        lines.append(f"  … and {len(ordered) - LISTED} more kinds in fuzz.json")
    return lines
