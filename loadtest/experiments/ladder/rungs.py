"""The rungs in order, and what is taken away from the top; each differs in its own setting alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.settings import (
    COMPILED,
    EAGER,
    FILLED,
    FROZEN,
    INDUCTOR,
    KIT,
    OFF,
    ON,
    ONE_WORKER,
    PINNED,
    SINGLE,
    STOCK,
    UNPINNED,
    Settings,
)

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
    own: tuple[str, ...]
    """Its own settings: what differs from the rung it is compared with."""
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
    return [rung if rung.before in names else replace(rung, before=None, own=()) for rung in chosen]


def list_rungs(model: str) -> list[Rung]:
    """The ladder from the bottom to the top, side rungs among them."""
    first = _rename(AS_IT_COMES, model)
    rungs = [Rung(name=STOCK_RUNG, label="stock TorchServe as it comes", before=None, own=(), settings=first)]
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
        own=tuple(step.changes),
        settings=replace(below.settings, **step.changes),
        side=step.side,
        reason=_find_reason(step, model),
    )


def _find_reason(step: Step, model: str) -> str:
    if "channels_last" in step.changes and model == BERT:
        return "the model has no convolutions"
    pictures = "packing" in step.changes and model != BERT
    return "all pictures have one size" if pictures else ""
