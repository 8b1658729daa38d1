"""The rungs in order, each with its server's settings and its load; each differs in its own setting alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from config.plan import Layout
from config.rules.requests import PRECISIONS
from handlers.engines import DEFAULT, name_variant
from handlers.engines import ENGINES as ALL_ENGINES
from handlers.engines.engine import Engine
from loadtest.errors import LoadTestError
from loadtest.scenarios.scenario import Arrival, Scenario
from loadtest.systems.kit import saturate
from loadtest.trials.block import Timing

ON, OFF = "on", "off"
STOCK, KIT = "stock", "kit"
ONE_WORKER, UNPINNED, PINNED = "one worker", "not pinned", "pinned"
SINGLE, FILLED = "single requests", "batches"
EAGER, FROZEN = "eager", "frozen torchscript"
COMPILED = "torch.compile"
IPEX, INDUCTOR = "ipex", "inductor"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server is set to, item by item; the defaults are the top rung's."""

    handler: str = KIT
    channels_last: str = ON
    ipex: str = ON
    graph: str = FROZEN
    """What executes: `eager`, `frozen torchscript`, `torch.compile`, or an engine's own, by its name."""
    allocator: str = "jemalloc"
    openmp: str = "intel"
    workers: str = PINNED
    """`one worker` with all cores, or one on each core, pinned or not."""
    precision: str = "int8"
    batches: str = FILLED
    buckets: str = ON
    """Texts are padded to warmed lengths and cut into runs; else a batch is padded to its longest text."""
    packing: str = ON
    """Texts share rows; else each has one of its own."""


def make_arguments(settings: Settings, layout: Layout, model: str) -> list[str]:
    """Of `python -m config`; only what differs from its defaults, so that the top is what people serve, but
    for its batches: these fill, as the default's go by a latency limit.

    `layout` is what the kit plans for the top on this machine.
    """
    arguments = ["--precision", settings.precision]
    if (engine := find_engine(settings)) != DEFAULT:
        arguments += ["--backend", engine]
    if settings.allocator != "jemalloc":
        arguments += ["--allocator", settings.allocator]
    if settings.openmp != "intel":
        arguments += ["--openmp", settings.openmp]
    if settings.workers != PINNED:
        arguments.append("--no-pinning")
    if off := list_switches(settings):
        arguments += ["--off", ",".join(off)]
    if settings.batches == FILLED:
        arguments += saturate(model, settings.precision)
    return [*arguments, *_make_sizes(settings, layout)]


def find_engine(settings: Settings) -> str:
    """Its graph's own, else IPEX or PyTorch alone."""
    if settings.graph == COMPILED:
        return INDUCTOR
    if settings.graph not in (EAGER, FROZEN):
        return settings.graph
    return IPEX if settings.ipex == ON else "eager"


def _make_sizes(settings: Settings, layout: Layout) -> list[str]:
    """The latency profile is the one that batches nothing; the workers it would choose are named instead."""
    sizes = ["--profile", "latency"] if settings.batches == SINGLE else []
    if settings.workers == ONE_WORKER:
        return [*sizes, "--workers", "1"]
    if sizes:
        sizes += ["--workers", str(layout.workers_per_model.value)]
        sizes += ["--cores-per-worker", str(layout.cores_per_worker.value)]
    return sizes


def list_switches(settings: Settings) -> list[str]:
    """What the handler leaves out."""
    off = ["channels_last"] if settings.channels_last == OFF else []
    off += ["trace", "freeze"] if settings.graph == EAGER else []
    off += ["freeze"] if settings.graph == COMPILED else []
    off += ["packing"] if settings.packing == OFF else []
    return [*off, *(["buckets"] if settings.buckets == OFF else [])]


RESNET50, BERT, DENSENET121 = "resnet50", "bert", "densenet121"
MODELS = (RESNET50, BERT, DENSENET121)
STOCK_RUNG, STOCK_ONE, TOP = "stock", "stock-one", "top"
SETTINGS, ENGINES = "settings", "engines"
KINDS = {SETTINGS: "ladder", ENGINES: "engines"}
"""RUNGS → the kind of experiment that is kept."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One server of the ladder."""

    name: str
    """Short, for files and messages."""
    label: str
    """For a person."""
    before: str | None
    """The rung it is compared with; None for the first."""
    settings: Settings
    side: bool = False
    """True: the next rung does not stand on it."""
    left_out: bool = False
    """True: the top with one setting taken away."""
    reason: str = ""
    """Why it does not apply to the model, and is not measured."""

    @property
    def is_stock(self) -> bool:
        return self.settings.handler == STOCK


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the ladder: what is put on, over the rung before."""

    name: str
    label: str
    changes: dict[str, str]
    side: bool = False
    over: str = ""
    """The side rung that it is compared with; empty: the rung below."""


BATCH_TOO = {"workers": ONE_WORKER, "batches": FILLED}
BUCKETS_TOO = {"batches": FILLED, "buckets": ON}
EVERYTHING_OFF = Settings(
    channels_last=OFF,
    ipex=OFF,
    graph=EAGER,
    allocator="system",
    openmp="gnu",
    workers=ONE_WORKER,
    precision="fp32",
    batches=SINGLE,
    buckets=OFF,
    packing=OFF,
)
AS_IT_COMES = replace(EVERYTHING_OFF, handler=STOCK, workers=UNPINNED)
"""TorchServe's defaults: a worker for each CPU, batch size 1."""
STEPS = (
    Step(name=STOCK_ONE, label="stock, one worker", changes={"workers": ONE_WORKER}, side=True),
    Step(
        name="kit-off",
        label="the kit's handler, everything off, one worker",
        changes={"handler": KIT, "workers": ONE_WORKER},
    ),
    Step(name="channels-last", label="+ channels_last", changes={"channels_last": ON}),
    Step(name="compile", label="+ torch.compile", changes={"graph": COMPILED}, side=True),
    Step(
        name="inductor",
        label="+ its freezing, ahead of time",
        changes={"graph": INDUCTOR},
        side=True,
        over="compile",
    ),
    Step(name="ipex", label="+ IPEX", changes={"ipex": ON}),
    Step(name="freeze", label="+ TorchScript, frozen", changes={"graph": FROZEN}),
    Step(name="tcmalloc", label="+ tcmalloc", changes={"allocator": "tcmalloc"}, side=True),
    Step(name="jemalloc", label="+ jemalloc", changes={"allocator": "jemalloc"}),
    Step(name="openmp", label="+ Intel OpenMP", changes={"openmp": "intel"}),
    Step(name="pinning", label="+ one worker a core, pinned", changes={"workers": PINNED}),
    Step(name="bf16", label="+ BF16", changes={"precision": "bf16"}),
    Step(name="int8", label="+ INT8", changes={"precision": "int8"}),
)
LAST_OF_IMAGES = (Step(name=TOP, label="+ batches", changes={"batches": FILLED}),)
LAST_OF_TEXTS = (
    Step(name="buckets", label="+ batches and buckets", changes=BUCKETS_TOO),
    Step(name=TOP, label="+ packing", changes={"packing": ON}),
)
"""Batches of texts are cut into warmed shapes as they come, and only then packed."""
LEFT_OUT = (
    Step(name="without-channels-last", label="without channels_last", changes={"channels_last": OFF}),
    Step(name="without-ipex", label="without IPEX", changes={"ipex": OFF}),
    Step(name="without-freeze", label="without TorchScript", changes={"graph": EAGER}),
    Step(name="with-system", label="glibc's malloc for jemalloc", changes={"allocator": "system"}),
    Step(name="with-tcmalloc", label="tcmalloc for jemalloc", changes={"allocator": "tcmalloc"}),
    Step(name="with-gnu", label="GNU's OpenMP for Intel's", changes={"openmp": "gnu"}),
    Step(name="without-pinning", label="without pinning", changes={"workers": UNPINNED}),
    Step(name="with-bf16", label="BF16 for INT8", changes={"precision": "bf16"}),
    Step(name="with-fp32", label="FP32 for INT8", changes={"precision": "fp32"}),
    Step(name="without-batches", label="without batches", changes={"batches": SINGLE}),
    Step(name="without-packing", label="without packing", changes={"packing": OFF}),
)


def list_all(model: str) -> list[Rung]:
    """In the order in which they are measured: what is left out comes last."""
    return [*list_rungs(model), *list_left_out(model)]


def choose(rungs: Sequence[Rung], names: Sequence[str]) -> list[Rung]:
    """All, or for a trial these alone; what is compared with none of them is compared with nothing."""
    if not names:
        return list(rungs)
    known = [rung.name for rung in rungs]
    if unknown := [name for name in names if name not in known]:
        raise LoadTestError(f"--only must name some of {', '.join(known)}: got {unknown[0]}")
    chosen = [rung for rung in rungs if rung.name in names]
    return [rung if rung.before in names else replace(rung, before=None) for rung in chosen]


def list_rungs(model: str) -> list[Rung]:
    """The ladder from the bottom to the top, side rungs among them."""
    first = _rename(AS_IT_COMES, model)
    rungs = [Rung(name=STOCK_RUNG, label="stock TorchServe as it comes", before=None, settings=first)]
    below = rungs[0]
    for step in (*STEPS, *(LAST_OF_TEXTS if model == BERT else LAST_OF_IMAGES)):
        base = find_rung(rungs, step.over) if step.over else below
        rung = _put_on(_fit(step, model), base, model)
        rungs.append(rung)
        below = below if rung.side or rung.reason else rung
    return rungs


def list_left_out(model: str) -> list[Rung]:
    """The top with one setting taken away each time."""
    top = next(rung for rung in list_rungs(model) if rung.name == TOP)
    return [replace(_put_on(step, top, model), left_out=True) for step in LEFT_OUT]


def find_rung(rungs: Sequence[Rung], name: str) -> Rung:
    return next(rung for rung in rungs if rung.name == name)


def _rename(settings: Settings, model: str) -> Settings:
    """Settings that mean nothing for the model have the same value on every rung."""
    items = ("channels_last",) if model == BERT else ("buckets", "packing")
    return replace(settings, **dict.fromkeys(items, ON))


def _fit(step: Step, model: str) -> Step:
    """The baseline of `make targets` batches."""
    if step.name == STOCK_ONE and model != BERT:
        return replace(step, label="stock, one worker, batch size 32", changes=BATCH_TOO)
    return step


def _put_on(step: Step, below: Rung, model: str) -> Rung:
    return Rung(
        name=step.name,
        label=step.label,
        before=below.name,
        settings=replace(below.settings, **step.changes),
        side=step.side,
        reason=_find_reason(step, model),
    )


def _find_reason(step: Step, model: str) -> str:
    if "channels_last" in step.changes and model == BERT:
        return "the model has no convolutions"
    pictures = "packing" in step.changes and model != BERT
    return "all pictures have one size" if pictures else ""


def list_engine_rungs(missing: Collection[str] = ()) -> list[Rung]:
    """By precision, the default engine first; those in `missing` are not installed, and not measured."""
    rungs: list[Rung] = []
    for precision in PRECISIONS:
        for engine in ALL_ENGINES.values():
            if precision in engine.flags:
                rungs.append(_make_rung(engine, precision, rungs, missing))
    return rungs


def _make_rung(engine: Engine, precision: str, rungs: list[Rung], missing: Collection[str]) -> Rung:
    settings = make_settings(engine, precision)
    measured = [one for one in rungs if not one.reason]
    alike = [one for one in measured if one.settings.precision == precision]
    # The first engine in the same precision; where it is that itself, in the first precision.
    before = next(iter([*alike, *measured]), None)
    absence = f"{engine.name} is not installed (make setup BACKEND={engine.name})"
    return Rung(
        name=f"{engine.name}-{precision}",
        label=name_variant(engine.name, precision),
        before=before.name if before else None,
        settings=settings,
        reason=absence if engine.name in missing else "",
    )


def make_settings(engine: Engine, precision: str) -> Settings:
    """An engine that is not on TorchScript names its graph as itself."""
    scripted = any(step.name == "trace" for step in engine.steps)
    return Settings(
        ipex=ON if engine.name == IPEX else OFF,
        graph=FROZEN if scripted else engine.name,
        precision=precision,
    )


PAYLOADS = {RESNET50: "cuts", DENSENET121: "cuts", BERT: "texts-grouped"}
SINGLE_USERS = 8
"""Of servers without batches: each worker has requests waiting; more would only wait longer."""
STOCK_USERS = 32
"""A full batch of stock's one worker."""
BATCH_USERS = 64
"""Two full batches of 16 for each of two workers, as in `make targets`: one is computed, one waits."""
RAMP_S = 1.0
"""Queues fill, beside the first round, which is left out."""
ROUNDS = 2
"""Answers of each user in a window, at least."""
UNSTEADY_STRETCH = 4
"""Stock as it comes has more threads than CPUs, which wait for each other spinning: for seconds at a time it
gives a fifth of its rate (seen), so it takes longer to tell its mean."""
PARTS = 2
"""Of such a window, each long enough to hold several of those seconds."""
TIMEOUT_S = 120.0


TIMING = Timing(seconds=3.75, warm_up_s=1.5, repeats=3)
"""BERT's servers need half a minute each to start: with this its ladder takes 30 minutes on two cores."""


def count_users(rung: Rung) -> int:
    """Requests under way at any time."""
    if rung.settings.batches != FILLED:
        return SINGLE_USERS
    return STOCK_USERS if rung.is_stock else BATCH_USERS


def make_scenario(rung: Rung, model: str, timing: Timing) -> Scenario:
    """The first payloads come first, each time, so that all servers are sent the same."""
    unsteady = rung.is_stock and rung.settings.workers == UNPINNED
    stretch, parts = (UNSTEADY_STRETCH, PARTS) if unsteady else (1, 1)
    return Scenario(
        name=f"ladder-{model}",
        model=model,
        payloads=PAYLOADS[model],
        arrival=Arrival(loop="closed"),
        steps=(count_users(rung),),
        warm_up_s=RAMP_S,
        duration_s=stretch * timing.seconds,
        repeats=timing.repeats,
        timeout_s=TIMEOUT_S,
        shuffled=False,
        leave_out_first_round=True,
        least_rounds=ROUNDS,
        parts=parts,
    )
