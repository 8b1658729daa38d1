"""`make ablation`: what each setting, backend and precision is worth, against plain TorchServe.

Each step is one server that differs from the one before in a single setting; then the last one, `top`, with
one setting taken away each time (leave-one-out). Whether a setting is in effect is verify's word, before and
after. Servers run with one instance behind HAProxy, those without any setting too. A block has with each step
the one that it is compared with, carried over from the block before; blocks are as large as memory allows, as
halted servers keep theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from config.archives import ModelDefinition, read_definitions
from config.plan import InstancePlan
from handlers.backends.catalogue import name_variant
from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.experiments.steps import (
    BERT,
    DENSENET121,
    FILLED,
    FIRST,
    IN_PROCESS,
    OFF,
    ONE_WORKER,
    PLAIN,
    RESNET50,
    TOP,
    UNPINNED,
    Step,
    choose,
    list_backends,
    list_steps,
    make_arguments,
)
from loadtest.load import Load
from loadtest.machine import read_host
from loadtest.payloads import Payload, make_payloads, pick_each_length
from loadtest.plots import COLOURS, GREY, draw_steps
from loadtest.report import INVALID, Plot, Result, Verdict, describe_machine, make_table
from loadtest.results import Block, Series, structure
from loadtest.servers.base import Running, Server, Testbed, kept_server
from loadtest.servers.inprocess import in_process_server
from loadtest.servers.kit import kit_server, write_plan
from loadtest.servers.stock import BATCH_SIZE, stock_server
from loadtest.stats import Interval, multiply
from loadtest.tables import (
    RATIO_METHOD,
    find_rate,
    list_findings,
    tabulate_accuracy,
    tabulate_answers,
    tabulate_cpu,
)
from loadtest.validity import find_doubts
from server.archives import read_archive
from server.supervisor.reload import read_available_mib

KIND = "ablation"
PAYLOADS = {RESNET50: "cuts", DENSENET121: "cuts", BERT: "texts-grouped"}
SETTINGS, BACKENDS = "settings", "backends"
PLAIN_STRETCH = 4
"""Windows of plain TorchServe as it comes are so many times as long: it has more threads than CPUs, which
wait for each other spinning, and for seconds at a time it gives a fifth of its rate (seen)."""
SECONDS, WARM_UP_S, REPEATS = 3.75, 1.5, 3
MOST_SERVERS = 6
"""Of a block; more would lie minutes apart within one repeat."""
USABLE_MEMORY, SERVER_MIB, OWN_SHARE = 0.8, 700, 0.8
"""Of what is available; of TorchServe's Java and launchers; of a worker's resident set that is its alone."""
WIDE = 1.5
"""An interval from 0.8 to 1.2 says that there is little; one that is wider says nothing."""
PUBLISHED = (
    "Published: ResNet50 7.71× and BERT 2.20× by TorchServe with IPEX "
    "([tutorial](https://pytorch.org/tutorials/intermediate/torchserve_with_ipex.html)), single runs on "
    "other hardware. This is what is left when every setting is put on by itself, verified, and measured in "
    "turns."
)


def prepare(
    model: str, what: str, testbed: Testbed, *, seconds: float, only: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Server]]:
    """(what is asked, the servers by step)."""
    archive = testbed.store / f"{model}.mar"
    steps = choose(list_steps(model) if what == SETTINGS else list_backends(), only)
    folder, port = testbed.place("plan")
    arguments = ["PRECISION=int8", f"MODEL_STORE={testbed.store}"]
    (instance,) = write_plan(folder, port=port, models=[model], arguments=arguments).instances.values()
    payloads = make_payloads(PAYLOADS[model], model=model, archives={model: archive})
    (definition,) = read_definitions(testbed.store, [model])
    each_length = pick_each_length(payloads, archive)
    servers = {step.name: make_server(step, definition, instance, each_length) for step in steps}
    known = read_archive(archive)
    free = USABLE_MEMORY * read_available_mib()
    groups = cut_groups(steps, lambda name: servers[name].memory_mib, free)
    if {FIRST, TOP} <= {*servers}:
        groups.append([TOP, FIRST])  # the headline: both in one block
    asked = {
        "model": model,
        "what": what,
        "seconds": seconds,
        "host": read_host(),
        "archive": {
            "id": known.archive_id,
            "weights": known.definition.weights,
            "notes": list(known.definition.notes),
        },
        "payloads": hashlib.sha256("".join(one.digest for one in payloads).encode()).hexdigest()[:16],
        "arguments": {step.name: make_arguments(step.settings, instance, model) for step in steps},
        "steps": [asdict(step) for step in steps],
        "groups": groups,
    }
    return asked, servers


def make_server(
    step: Step, definition: ModelDefinition, top: InstancePlan, each_length: Sequence[Payload]
) -> Server:
    """A length that is new to a worker without buckets costs it a compile, and in a turn of seconds it would
    meet more new ones than in any hour of serving: `each_length` is sent before it is measured."""
    settings, model = step.settings, definition.name
    workers = 1 if settings.workers == ONE_WORKER else len(top.worker_cpus)
    memory = definition.memory
    # The kit will reject a variant that has none, and says why.
    one = memory.get(name_variant(settings.backend, settings.precision)) or next(iter(memory.values()))
    needed = SERVER_MIB + round(workers * OWN_SHARE * one.worker_mib)
    if settings.server == PLAIN:
        size = None if settings.workers != ONE_WORKER else BATCH_SIZE if settings.batches == FILLED else 1
        return stock_server(step.name, model, batch_size=size, memory_mib=needed)
    if settings.server == IN_PROCESS:
        return in_process_server(step.name, model, make_arguments(settings, top, model))

    def send_each_length(running: Running) -> None:
        # Requests go to whichever worker is free: with one pass more most lengths have been to each.
        for _ in range(1 if workers == 1 else workers + 1):
            for one in each_length:
                running.client.predict(one.model, one.body, one.content_type, timeout_s=120.0)

    arguments = make_arguments(settings, top, model)
    first = send_each_length if settings.buckets == OFF and each_length else None
    return kit_server(step.name, [model], arguments, memory_mib=needed, prepare=first)


def cut_groups(steps: Sequence[Step], memory_mib: Callable[[str], int], limit_mib: float) -> list[list[str]]:
    """In the steps' order, each as large as it may be; a step comes with the one it is compared with."""
    groups: list[list[str]] = []
    for step in steps:
        wanted = [name for name in (step.before, step.name) if name]
        grown = [*groups[-1], *(name for name in wanted if name not in groups[-1])] if groups else wanted
        fits = len(grown) <= MOST_SERVERS and sum(map(memory_mib, grown)) <= limit_mib
        if groups and fits:
            groups[-1] = grown
        elif (needed := sum(map(memory_mib, wanted))) <= limit_mib:
            groups.append(wanted)
        else:
            raise LoadTestError(
                f"{', '.join(wanted)} must be up together and need {needed} MiB: got {limit_mib:.0f} MiB "
                "that may be used; end other programs"
            )
    return groups


def make_load(step: Step, model: str, seconds: float) -> Load:
    """The first payloads come first, each time, so that all servers are sent the same."""
    unsteady = step.settings.server == PLAIN and step.settings.workers == UNPINNED
    return Load(
        name=step.name, models=(model,), payloads=PAYLOADS[model], users=step.users, warm_up_s=1.0,
        duration_s=seconds * (PLAIN_STRETCH if unsteady else 1), timeout_s=120.0, in_order=True,
        leave_out_first_round=True, least_rounds=2,
    )  # fmt: skip


def run(bench: Bench, servers: Mapping[str, Server] | None = None) -> Result:
    """Block after block, then the table."""
    asked = bench.asked
    steps = {raw["name"]: structure(raw, Step) for raw in asked["steps"]}
    blocks = [
        bench.turns(
            f"from-{group[-1]}",
            [
                (
                    servers[name] if servers else kept_server(name),
                    make_load(steps[name], asked["model"], asked["seconds"]),
                )
                for name in group
            ],
            repeats=REPEATS,
            warm_up_s=WARM_UP_S,
        )
        for group in asked["groups"]
    ]
    return show_steps(bench, [*steps.values()], blocks)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of one step."""

    step: Step
    series: Series | None
    to_before: Interval | None
    to_first: Interval | None
    word: str


def make_rows(steps: Sequence[Step], blocks: Sequence[Block]) -> list[Row]:
    """Each by the block that it is first in. A ratio to the first step is direct where a block has both, else
    multiplied over blocks."""
    rows: dict[str, Row] = {}
    for step in steps:
        block = next(one for one in blocks if one.find(step.name) or step.name in one.rejected)
        if step.name in block.rejected:
            word = "cannot be switched off" if step.removed else "cannot be served here"
            word = f"{word}: {block.rejected[step.name]}"
            rows[step.name] = Row(step=step, series=None, to_before=None, to_first=None, word=word)
            continue
        series, first = block.find(step.name), steps[0].name
        good = is_good(series) and (step.before is None or is_good(block.find(step.before)))
        ratio = block.ratio(step.name, step.before) if good and step.before else None
        below = rows[step.before].to_first if step.before else None
        direct = [one for one in blocks if ratio and is_good(one.find(first)) and one.find(step.name)]
        to_first = multiply(ratio, below) if ratio and below else None
        to_first = direct[0].ratio(step.name, first) if direct else to_first
        word = judge(ratio, removed=step.removed) if ratio else "" if good else INVALID
        rows[step.name] = Row(step=step, series=series, to_before=ratio, to_first=to_first, word=word)
    return [*rows.values()]


def is_good(series: Series | None) -> bool:
    return series is not None and not find_doubts(series)


def judge(ratio: Interval, *, removed: bool) -> str:
    """What putting a setting on did, or what taking it away from the top did."""
    if ratio.low > 1:
        return "better without it on this host" if removed else "helps"
    if ratio.high < 1:
        return "worth having" if removed else "slows"
    if ratio.high / ratio.low > WIDE:
        return "too few repeats to say"
    return "not missed on this host" if removed else "no gain seen on this host"


def show_steps(bench: Bench, steps: Sequence[Step], blocks: Sequence[Block]) -> Result:
    """The table, leave-one-out, and a bar for each."""
    rows, asked = make_rows(steps, blocks), bench.asked
    every = [row.series for row in rows if row.series]
    backends = asked["what"] == BACKENDS
    added = [_show(row, backends) for row in rows if not row.step.removed]
    left = [_show(row, backends) for row in rows if row.step.removed]
    title = f"{'Backends' if backends else 'Ablation'} of {asked['model']}"
    return Result(
        title=title,
        # What the kit rejects cannot be measured here: that is an answer, and no failure.
        verdicts=[_make_verdict(row) for row in rows if row.series],
        notes=[PUBLISHED if asked["model"] in (RESNET50, BERT) and not backends else "",
               f"Weights {asked['archive']['weights']}: {'; '.join(asked['archive']['notes'])}"],
        tables=[
            make_table(
                "Each backend in each precision" if backends else "What each setting adds", added,
                "Compared with the first one of the precision." if backends else "Each row is a server with "
                "one setting more than the row before, over REST; a row in brackets has none standing on it.",
            ),
            make_table("Leave-one-out", left, "The top without one setting; below 1 it is worth having."),
            tabulate_cpu(every),
            tabulate_answers(every),
            tabulate_accuracy(every),
        ],
        plots=[_draw(rows, f"{title} on {describe_machine(bench.kept.host)}")],
        findings=list_findings(every),
        method=[
            "Locust sends real payloads over REST in a closed loop from the same cores, more users to "
            "servers that batch. A closed loop's rate is throughput. Servers that do not have their turn are "
            "halted.",
            RATIO_METHOD,
            "Ratios to the first row are measured where a block has both, else multiplied over blocks.",
        ],
    )  # fmt: skip


def _show(row: Row, backends: bool) -> dict[str, Any]:
    shown = row.series if row.series and not find_doubts(row.series) else None
    label = f"({row.step.label})" if row.step.side else row.step.label
    cells: dict[str, Any] = {
        "server": label,
        "requests/s": find_rate(shown) if shown else INVALID if row.series else None,
        f"ratio to {'the top' if row.step.removed else 'the one before'}": row.to_before,
    }
    if not row.step.removed:
        cells["ratio to the first"] = row.to_first
    if backends:
        cells["cold start, s"] = shown.facts.start_s if shown else None
        cells["a worker's own memory, MiB"] = max(shown.facts.own_mib, default=None) if shown else None
    return {**cells, "verdict": row.word or None, "users": row.step.users}


def _make_verdict(row: Row) -> Verdict:
    doubts = "; ".join(map(str, find_doubts(row.series))) if row.series else row.word
    figure = row.to_before or (find_rate(row.series) if row.series and not doubts else None)
    what = f"{row.step.label}, to {row.step.before}" if row.to_before else row.step.label
    return Verdict(
        what=what, figure=figure, unit="×" if row.to_before else " requests/s", why=doubts or row.word
    )


def _draw(rows: Sequence[Row], title: str) -> Plot | None:
    drawn = []
    for row in rows:
        if row.series and not find_doubts(row.series):
            left, plain = row.step.removed, row.step.settings.server == PLAIN
            ratio = row.to_before if left else row.to_first
            words = (
                f"{ratio.value:.2f}× the top" if ratio and left else f"{ratio.value:.1f}×" if ratio else ""
            )
            colour = COLOURS[1] if left else GREY if plain else COLOURS[0]
            drawn.append((row.step.label, find_rate(row.series), words, colour))
    return draw_steps(drawn, title=title)
