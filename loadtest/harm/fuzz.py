"""`python -m loadtest.harm.fuzz`: thousands of broken bodies to real workers; none may fail or grow them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.harm.__main__ import add_options
from loadtest.harm.client import Outcome, Request, send_all
from loadtest.harm.mutations import Case, draw_cases
from loadtest.harm.row import Look
from loadtest.harm.seeds import Seed, make_seeds
from loadtest.harm.site import Site
from loadtest.results import make_results_folder
from loadtest.servers import ROOT
from loadtest.soak import Growth
from server.errors import ServerError
from server.start import Interrupted, catch_signals

RESULTS = ROOT / "run" / "fuzz"
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


@dataclass(frozen=True, kw_only=True)
class Fuzz:
    """What came of all."""

    seed: int
    asked: int
    seconds: float
    kinds: Mapping[str, int]
    """Status or failure → how many."""
    growths: Sequence[Growth]
    """Of the workers that lived through it."""
    workers_lost: int
    server_lost: bool
    again_s: float | None
    failures: Sequence[Failure] = field(default=())

    @property
    def sent(self) -> int:
        return sum(self.kinds.values())


def find_broken(fuzz: Fuzz) -> Iterator[str]:
    """Each says what, got, and what was promised."""
    if fuzz.sent < fuzz.asked:
        yield f"only {fuzz.sent} of {fuzz.asked} bodies could be sent within {AT_MOST_S:g} s"
    if fuzz.failures:
        yield f"{len(fuzz.failures)} bodies were not answered, or with 5xx, promised: none"
    if fuzz.workers_lost or fuzz.server_lost:
        server = " and the server" if fuzz.server_lost else ""
        yield f"{fuzz.workers_lost} workers{server} lost, promised: none"
    if fuzz.again_s is None:
        yield "no right answer within a minute afterwards"
    for one in fuzz.growths:
        if one.percent > GROWTH_PERCENT:
            yield (
                f"{one.model} worker {one.pid} grew from {one.early_mib:.0f} to {one.late_mib:.0f} MiB "
                f"({one.percent:+.1f} %), promised: {GROWTH_PERCENT:g} %"
            )


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 nothing was broken, 1 something was, or nothing could be tried."""
    options = parse_arguments(arguments)
    if options.check:
        return 0
    try:
        with catch_signals():
            fuzz = run_fuzz(options)
    except (LoadTestError, ServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print("stopped", file=sys.stderr)
        return signal.exit_code
    print("", *render_fuzz(fuzz), sep="\n")
    return 1 if any(find_broken(fuzz)) else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The same bodies each time, unless another seed is asked for."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.harm.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=BODIES, help=f"how many ({BODIES})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of what is drawn ({SEED})")
    add_options(parser, RESULTS)
    options = parser.parse_args(arguments)
    if options.bodies < 1:
        parser.error(f"BODIES must be 1 or more: got {options.bodies}")
    return options


def run_fuzz(options: argparse.Namespace) -> Fuzz:
    """Draw, start, warm up, send, look."""
    kept = make_results_folder(options.results)
    seeds = make_seeds()
    print(f"drawing {options.bodies} bodies with seed {options.seed}; results and logs: {kept}", flush=True)
    cases = draw_cases(seeds, options.bodies, options.seed)
    print(f"starting the kit with both models in {options.precision}", flush=True)
    with Site(kept / "server", options.store, port=options.port, precision=options.precision) as site:
        warm_up(site, seeds)
        fuzz = replace(send_cases(site, cases, kept), seed=options.seed)
    with (kept / "fuzz.json").open("x", encoding="utf-8") as file:
        json.dump(asdict(fuzz), file, indent=1, ensure_ascii=False)
    return fuzz


def warm_up(site: Site, seeds: Sequence[Seed]) -> None:
    """Whatever these are answered: the fuzz judges."""
    good = [site.ask(one.model, one.body, one.content_type) for one in seeds]
    send_all(good * WARM_UP, site.port, clients=CLIENTS, keep=True, at_most_s=AT_MOST_S / 4)


def send_cases(site: Site, cases: Sequence[Case], kept: Path) -> Fuzz:
    """All of them over kept connections; what failed once more alone."""
    requests = [replace(case.request, token=site.token) for case in cases]
    models, before, began = site.find_models(), site.look(), time.monotonic()
    outcomes = send_all(requests, site.port, clients=CLIENTS, keep=True, at_most_s=AT_MOST_S)
    seconds = time.monotonic() - began
    again_s, after = site.time_canaries(), site.look()
    failed = [place for place, outcome in enumerate(outcomes) if is_failure(outcome)]
    alone = [site.send(requests[place]).kind for place in failed[:SENT_AGAIN]]
    return Fuzz(
        seed=0,
        asked=len(cases),
        seconds=round(seconds, 1),
        kinds=dict(sorted(Counter(outcome.kind for outcome in outcomes).items())),
        growths=compare(before, after, models),
        workers_lost=len(set(before.resident_mib) - set(after.resident_mib)),
        server_lost=before.java != after.java,
        again_s=again_s,
        failures=[
            keep_failure(kept, number, cases[place], outcomes[place], "".join(alone[number : number + 1]))
            for number, place in enumerate(failed)
        ],
    )


def is_failure(outcome: Outcome) -> bool:
    """A client's fault is 4xx, whatever it sent."""
    return bool(outcome.failure) or outcome.status >= 500


def compare(before: Look, after: Look, models: Mapping[int, str]) -> list[Growth]:
    """Workers that live through both looks."""
    both = [pid for pid in before.resident_mib if pid in after.resident_mib]
    early, late = before.resident_mib, after.resident_mib
    return [
        Growth(model=models.get(pid, ""), pid=pid, early_mib=early[pid], late_mib=late[pid]) for pid in both
    ]


def keep_failure(kept: Path, number: int, case: Case, outcome: Outcome, alone: str) -> Failure:
    """Its body as a file, and how to send it again."""
    file = kept / "failures" / f"{number:04d}-{case.origin}.body"
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
    """With $TOKEN and $URL to be filled in; `make curl` prints both."""
    # An empty type has to be said so: curl's own default is a form's.
    headers = [("Content-Type", request.content_type), *request.headers]
    shown = " ".join(f"-H '{name}: {value}'" if value else f"-H '{name}:'" for name, value in headers)
    return (
        f'curl -i -H "Authorization: Bearer $TOKEN" {shown} --data-binary @{file.name} "$URL{request.path}"'
    )


def render_fuzz(fuzz: Fuzz) -> list[str]:
    """Counts, memory, the first failures, the verdict."""
    rate = fuzz.sent / max(fuzz.seconds, 0.1)
    counts = ", ".join(f"{count} × {kind}" for kind, count in fuzz.kinds.items())
    lines = [f"{fuzz.sent} bodies in {fuzz.seconds:.0f} s ({rate:.0f} a second), seed {fuzz.seed}: {counts}"]
    lines += [
        f"  {one.model} worker {one.pid}: {one.early_mib:.0f} → {one.late_mib:.0f} MiB ({one.percent:+.1f} %)"
        for one in fuzz.growths
    ]
    lines += render_failures(fuzz.failures)
    return [*lines, *(f"BROKEN: {text}" for text in find_broken(fuzz))]


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


if __name__ == "__main__":
    sys.exit(main())
