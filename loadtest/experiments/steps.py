"""The steps of an ablation: servers that differ from the one before in a single setting."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config.installed import read_installed
from config.plan import InstancePlan
from config.planning import PRECISIONS
from handlers.backends.catalogue import BACKENDS, DEFAULT, name_variant
from loadtest.errors import LoadTestError
from loadtest.servers.kit import saturate

RESNET50, BERT, DENSENET121 = "resnet50", "bert", "densenet121"
ON, OFF = "on", "off"
PLAIN, KIT, IN_PROCESS = "plain", "kit", "in-process"
EAGER, FROZEN, COMPILED = "eager", "frozen torchscript", "torch.compile"
ONE_WORKER, UNPINNED, PINNED = "one worker", "not pinned", "pinned"
SINGLE, FILLED = "single requests", "batches"
FIRST, TOP = "plain-one", "top"
USERS = {SINGLE: 8, FILLED: 64}
"""Without batches each worker has requests waiting; else there are two full batches for each of two."""
PLAIN_USERS = 32
"""A full batch of plain TorchServe's one worker."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server is set to; the defaults are the top's."""

    server: str = KIT
    channels_last: str = ON
    backend: str = "ipex"
    graph: str = FROZEN
    """Of ipex and eager: what executes."""
    allocator: str = "jemalloc"
    openmp: str = "intel"
    workers: str = PINNED
    """One with all cores, or one on each core, pinned or not."""
    precision: str = "int8"
    batches: str = FILLED
    buckets: str = ON
    """Texts are padded to warmed lengths and cut into runs; else a batch is padded to its longest text."""
    packing: str = ON
    """Texts share rows; else each has one of its own."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One server."""

    name: str
    label: str
    settings: Settings
    before: str | None = None
    """The step it is compared with."""
    side: bool = False
    """The next step does not stand on it."""
    removed: bool = False
    """The top with one setting taken away."""

    @property
    def users(self) -> int:
        if self.settings.server == PLAIN and self.settings.batches == FILLED:
            return PLAIN_USERS
        return USERS[self.settings.batches]


NOTHING = Settings(
    server=PLAIN, channels_last=OFF, backend="eager", graph=EAGER, allocator="system", openmp="gnu",
    workers=ONE_WORKER, precision="fp32", batches=FILLED, buckets=OFF, packing=OFF,
)  # fmt: skip
"""Plain TorchServe at its best here: one worker with all cores, batches of 32. As it comes it has a worker
for each CPU, each with as many threads as CPUs, and batch size 1."""
SIDE = True
ADDED: tuple[tuple[str, str, dict[str, str], bool], ...] = (
    ("plain", "plain TorchServe as it comes", {"workers": UNPINNED, "batches": SINGLE}, SIDE),
    ("kit-off", "the kit's handler, everything off, one worker", {"server": KIT, "batches": SINGLE}, False),
    ("channels-last", "+ channels_last", {"channels_last": ON}, False),
    ("compile", "+ torch.compile", {"graph": COMPILED, "backend": "inductor"}, SIDE),
    ("inductor", "+ torch.compile, frozen, ahead of time", {"graph": FROZEN, "backend": "inductor"}, SIDE),
    ("ipex", "+ IPEX", {"backend": "ipex"}, False),
    ("freeze", "+ TorchScript, frozen", {"graph": FROZEN}, False),
    ("tcmalloc", "+ tcmalloc", {"allocator": "tcmalloc"}, SIDE),
    ("jemalloc", "+ jemalloc", {"allocator": "jemalloc"}, False),
    ("openmp", "+ Intel OpenMP", {"openmp": "intel"}, False),
    ("pinning", "+ one worker a core, pinned", {"workers": PINNED}, False),
    ("bf16", "+ BF16", {"precision": "bf16"}, False),
    ("int8", "+ INT8", {"precision": "int8"}, False),
    ("buckets", "+ batches and buckets", {"batches": FILLED, "buckets": ON}, False),
    (TOP, "+ packing", {"packing": ON}, False),
)
LEFT_OUT: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("without-channels-last", "without channels_last", {"channels_last": OFF}),
    ("without-ipex", "without IPEX", {"backend": "eager"}),
    ("without-freeze", "without TorchScript", {"graph": EAGER}),
    ("with-system", "glibc's malloc for jemalloc", {"allocator": "system"}),
    ("with-tcmalloc", "tcmalloc for jemalloc", {"allocator": "tcmalloc"}),
    ("with-gnu", "GNU's OpenMP for Intel's", {"openmp": "gnu"}),
    ("without-pinning", "without pinning", {"workers": UNPINNED}),
    ("with-bf16", "BF16 for INT8", {"precision": "bf16"}),
    ("with-fp32", "FP32 for INT8", {"precision": "fp32"}),
    ("without-batches", "without batches", {"batches": SINGLE}),
    ("without-packing", "without packing", {"packing": OFF}),
    ("no-server", "without a server: the handler in its processes", {"server": IN_PROCESS}),
)


def list_steps(model: str) -> list[Step]:
    """From plain TorchServe up to the top, and the top with one thing left out."""
    text = model == BERT
    # What means nothing for the model has the same value on every step.
    same = dict.fromkeys(("channels_last",) if text else ("buckets", "packing"), ON)
    settings, label = replace(NOTHING, **same), "plain TorchServe, one worker, batch size 32"
    if text:  # its example's handler has one forward pass a batch, padded to 150 tokens
        settings, label = replace(settings, batches=SINGLE), "plain TorchServe, one worker"
    steps = [Step(name=FIRST, label=label, settings=settings)]
    below = steps[0]
    for name, label, changes, side in ADDED:
        if {*changes} <= {*same} and name != TOP:
            continue
        if name == "buckets" and not text:
            continue
        if name == TOP and not text:
            label, changes = "+ batches", {"batches": FILLED}
        settings = replace(below.settings, **changes)
        steps.append(Step(name=name, label=label, settings=settings, before=below.name, side=side))
        below = below if side else steps[-1]
    return steps + [
        Step(name=name, label=label, settings=replace(below.settings, **changes), before=TOP, removed=True)
        for name, label, changes in LEFT_OUT
        if not {*changes} <= {*same}
    ]


def list_backends() -> list[Step]:
    """Each backend that is installed in each precision it offers, beside the first one in that precision."""
    missing = read_installed(Path(sys.prefix)).missing_backends
    steps: list[Step] = []
    for precision in PRECISIONS:
        for backend in BACKENDS.values():
            if precision in backend.flags and backend.name not in missing:
                alike = [one.name for one in steps if one.settings.precision == precision]
                settings = Settings(backend=backend.name, precision=precision)
                before = next(iter([*alike, *(one.name for one in steps)]), None)
                label = name_variant(backend.name, precision)
                steps.append(
                    Step(name=label.replace(" ", "-"), label=label, settings=settings, before=before)
                )
    return steps


def make_arguments(settings: Settings, top: InstancePlan, model: str) -> list[str]:
    """Settings, NAME=VALUE; only what differs from the defaults: the top is what people serve, but for
    its batches: these fill, as the default's go by a latency limit. `top`: the instance of the top step."""
    arguments = [f"PRECISION={settings.precision}"]
    arguments += [f"BACKEND={settings.backend}"] if settings.backend != DEFAULT else []
    arguments += [f"ALLOCATOR={settings.allocator}"] if settings.allocator != "jemalloc" else []
    arguments += [f"OPENMP={settings.openmp}"] if settings.openmp != "intel" else []
    arguments += ["PINNING=0"] if settings.workers != PINNED else []
    off = ["channels_last"] if settings.channels_last == OFF else []
    off += {EAGER: ["trace", "freeze"], COMPILED: ["freeze"]}.get(settings.graph, [])
    off += [name for name in ("packing", "buckets") if getattr(settings, name) == OFF]
    arguments += [f"OFF={','.join(off)}"] if off else []
    if settings.batches == FILLED:
        arguments += saturate(model, settings.precision)
    else:
        # MODE=latency batches nothing; the workers it would choose are named instead.
        arguments += ["MODE=latency"]
    if settings.workers == ONE_WORKER:
        arguments += ["WORKERS=1"]
    elif settings.batches == SINGLE:
        arguments += [f"WORKERS={len(top.worker_cpus)}", f"CORES_PER_WORKER={top.cores_per_worker}"]
    return arguments


def choose(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """All, or for a trial these alone; what is compared with none of them is compared with nothing."""
    known = [step.name for step in steps]
    if unknown := [name for name in names if name not in known]:
        raise LoadTestError(f"--only must name some of {', '.join(known)}: got {unknown[0]}")
    chosen = [step for step in steps if not names or step.name in names]
    there = {step.name for step in chosen}
    return [step if step.before in there else replace(step, before=None) for step in chosen]
