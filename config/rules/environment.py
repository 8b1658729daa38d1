"""Variables for TorchServe's process, and those its workers must be seen with."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from config.definitions import ModelDefinition
from config.plan import Libraries, ModelPlan, Setting, Settings
from config.rules.libraries import MALLOC_CONF, list_preloads
from handlers.backends.catalogue import BACKENDS, SWITCHED

KMP_AFFINITY = "granularity=fine,compact,1,0"
"""The launcher's value: thread n on the worker's n-th core, SMT siblings last."""

KMP_BLOCKTIME_MS = 1
"""The launcher's value: a thread that has nothing to do spins 1 ms, not OpenMP's 200, because the workers
of all models share the same cores and would be kept waiting."""

PRIMITIVES_PER_SHAPE = 256
"""Kernels oneDNN caches for one shape of the input: ResNet50 has 54 convolution and linear layers,
DenseNet121 121, BERT 74."""

EAGER = ("trace", "freeze")
"""Steps to a graph that are left out for a handler with freeze = False."""

UNBOUND = "none"
"""KMP_AFFINITY where CPUs are shared: the launcher keeps a value that is there, and would bind each worker's
threads to the first CPUs. Not `disabled`: with that IPEX finds no CPUs, and its import fails (2.8)."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How workers come to be."""

    launched: bool
    """By the launcher."""
    bound: bool
    """Which keeps each on CPUs of its own."""


def plan_environment(
    models: Sequence[ModelDefinition],
    plans: Mapping[str, ModelPlan],
    off: Sequence[str],
    libraries: Libraries,
    cores_per_worker: int,
    launch: Launch,
) -> dict[str, Setting]:
    """What is set on TorchServe and inherited by the workers."""
    eager = [model.name for model in models if not model.freeze]
    off_by_model = {name: sorted({*off, *(EAGER if name in eager else ())}) for name in plans}
    settings = {
        "CPU_KIT_OPTIONS": Setting(
            value=_render_options(plans, off_by_model, cores_per_worker),
            reason="what the handler cannot know: backend and precision asked for, threads it may use, and "
            "what one request may cost (limits; each with its reason in plan.json)"
            + (f"; switched off with --off: {', '.join(off)}, a baseline" if off else "")
            + (f"; eager by their handlers' freeze = False: {', '.join(eager)}" if eager else ""),
        ),
        **_plan_process(models, libraries),
    }
    if not launch.launched:
        return {**settings, **_without_launcher(libraries, cores_per_worker)}
    return settings if launch.bound else {**settings, **_plan_affinity(libraries, launch)}


def plan_timing_environment(
    models: Sequence[ModelDefinition],
    libraries: Libraries,
    cores: int,
    launch: Launch,
) -> dict[str, str]:
    """What a worker is seen with, but for the options of its model, which name its backend: the switch that
    TorchServe hands over is not read then."""
    settings = {
        **_plan_process(models, libraries),
        **plan_worker_environment(libraries, cores, launch, ()),
    }
    for backend in SWITCHED.values():
        del settings[BACKENDS[backend].switch_variable]
    # The files themselves: the names the launcher looks for are linked when a server starts.
    files = [path for path in (libraries.openmp_path.value, libraries.allocator_path.value) if path]
    values = {name: str(setting.value) for name, setting in sorted(settings.items())}
    return {**values, "LD_PRELOAD": ":".join(files)}


def _plan_process(models: Sequence[ModelDefinition], libraries: Libraries) -> dict[str, Setting]:
    """Settings that are the same for the workers of all models."""
    # Room for every warmed shape of the model with the most, as a power of two.
    shapes = max(model.count_shapes() for model in models)
    capacity = 1 << (PRIMITIVES_PER_SHAPE * shapes - 1).bit_length()
    settings = {
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": Setting(value=str(capacity), reason=_explain_capacity(models)),
        **{
            one.cache_bound: Setting(value=str(capacity), reason=f"the same bound for {one.name}'s own cache")
            for one in BACKENDS.values()
            if one.cache_bound
        },
        "TOKENIZERS_PARALLELISM": Setting(
            value="false",
            reason="tokenizing on more threads would leave the worker's cores or oversubscribe them",
        ),
        "TORCH_WARM_POOL": Setting(
            value="0",
            reason="nothing is compiled while serving: where Triton is installed, importing a backend may "
            "start a pool of compilers beside each worker, 600 MiB and 3.5 s of CPU",
        ),
    }
    if libraries.allocator.value == "jemalloc":
        settings["MALLOC_CONF"] = Setting(
            value=MALLOC_CONF,
            reason="never give pages back (decay -1): with the launcher's value ResNet50 gets slower than "
            "without jemalloc; use kept blocks for requests of any size (fit 16): else memory grows with "
            "each new mix of text lengths; the launcher keeps what is set",
        )
    return settings


def plan_worker_environment(
    libraries: Libraries, cores_per_worker: int, launch: Launch, backends: Collection[str]
) -> dict[str, Setting]:
    """What the launcher sets by itself; left to it, because it is the proof that it ran and found the
    library."""
    if not launch.launched:
        return {
            name: setting
            for name, setting in _without_launcher(libraries, cores_per_worker).items()
            if name != "LD_PRELOAD"
        } | {**_preload_list(libraries), **_set_by_torchserve(backends)}
    settings = {
        **_set_by_torchserve(backends),
        "OMP_NUM_THREADS": Setting(
            value=str(cores_per_worker), reason="the launcher sets one thread per core"
        ),
        **_preload_list(libraries),
        **_plan_affinity(libraries, launch),
    }
    if libraries.openmp.value == "intel":
        settings["KMP_BLOCKTIME"] = _plan_blocktime()
    return settings


def _plan_affinity(libraries: Libraries, launch: Launch) -> Settings:
    if libraries.openmp.value != "intel":
        return {}
    if launch.bound:
        return {
            "KMP_AFFINITY": Setting(value=KMP_AFFINITY, reason="the launcher pins Intel OpenMP's threads")
        }
    reason = "given to the launcher, which keeps it: its own value would bind threads to shared CPUs"
    return {"KMP_AFFINITY": Setting(value=UNBOUND, reason=reason)}


def _set_by_torchserve(backends: Collection[str]) -> Settings:
    """Properties that are in effect only where they are seen in the workers."""
    way = "reaches a worker (ConfigManager.getBackendConfiguration)"
    return {
        "TS_DECODE_INPUT_REQUEST": Setting(value="false", reason=f"how decode_input_request {way}"),
        **{
            BACKENDS[backend].switch_variable: Setting(
                value=str(backend in backends).lower(), reason=f"how {switch} {way}"
            )
            for switch, backend in SWITCHED.items()
        },
    }


def _without_launcher(libraries: Libraries, cores_per_worker: int) -> Settings:
    """KMP_AFFINITY is left out: unpinned workers would all put their first thread on the same CPU."""
    preloads = list_preloads(libraries)
    settings = {
        "OMP_NUM_THREADS": Setting(value=str(cores_per_worker), reason="no launcher sets it"),
        "LD_PRELOAD": Setting(value=":".join(preloads), reason="no launcher preloads the libraries"),
    }
    if libraries.openmp.value == "intel":
        settings["KMP_BLOCKTIME"] = _plan_blocktime()
    return {name: setting for name, setting in settings.items() if setting.value}


def _preload_list(libraries: Libraries) -> dict[str, Setting]:
    reason = "each library the launcher finds goes in front: OpenMP, then the allocator"
    return {"LD_PRELOAD": Setting(value=list_preloads(libraries), reason=reason)}


def _plan_blocktime() -> Setting:
    reason = "idle threads spin 1 ms, not 200: the workers of all models share the cores"
    return Setting(value=str(KMP_BLOCKTIME_MS), reason=reason)


def _render_options(plans: Mapping[str, ModelPlan], off: Mapping[str, Sequence[str]], threads: int) -> str:
    options = {
        name: {
            "backend": plan.backend.value,
            "precision": plan.precision.value,
            "batch": plan.batch_size.value,
            "threads": threads,
            **({"off": off[name]} if off[name] else {}),
            **({"limits": {limit: one.value for limit, one in plan.limits.items()}} if plan.limits else {}),
        }
        for name, plan in plans.items()
    }
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def _explain_capacity(models: Sequence[ModelDefinition]) -> str:
    largest = max(models, key=ModelDefinition.count_shapes)
    shapes = "batch sizes" if not largest.token_lengths else "shapes (batch size × text length)"
    return (
        f"oneDNN's cache holds the {largest.count_shapes()} {shapes} that {largest.name} may warm × "
        f"{PRIMITIVES_PER_SHAPE} kernels; with less, every batch would compile kernels again"
    )
