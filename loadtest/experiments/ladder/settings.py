"""What a rung's server is set to, as plain values, and the kit's arguments for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from config.plan import Layout
from handlers.engines import DEFAULT
from loadtest.systems.kit import saturate

ON, OFF = "on", "off"
STOCK, KIT = "stock", "kit"
ONE_WORKER, UNPINNED, PINNED = "one worker", "not pinned", "pinned"
SINGLE, FILLED = "single requests", "batches"
EAGER, FROZEN = "eager", "frozen torchscript"
COMPILED = "torch.compile"
IPEX, INDUCTOR = "ipex", "inductor"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Each field is one thing that a server can be seen to do; the defaults are the top rung's."""

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


ITEMS = tuple(field.name for field in fields(Settings))


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


def list_switches(settings: Settings) -> Sequence[str]:
    """What the handler leaves out."""
    off = ["channels_last"] if settings.channels_last == OFF else []
    off += ["trace", "freeze"] if settings.graph == EAGER else []
    off += ["freeze"] if settings.graph == COMPILED else []
    off += ["packing"] if settings.packing == OFF else []
    return [*off, *(["buckets"] if settings.buckets == OFF else [])]
