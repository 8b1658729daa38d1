"""Variables of TorchServe and its workers, and the keys of config.properties."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from config.archives import ModelDefinition
from config.plan import Libraries, ModelPlan
from config.planning.instances import Draft
from config.planning.proxy import MAX_REQUEST_BYTES
from config.planning.resources import count_frontend_threads
from config.proxy import SOCKETS, find_socket
from handlers.backends.catalogue import BACKENDS, SWITCHED

MALLOC_CONF = (
    "oversize_threshold:1,background_thread:false,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
    "lg_extent_max_active_fit:16"
)
"""The launcher keeps what is set. Decay -1: never give pages back; with the launcher's own options ResNet50
got slower than with glibc's allocator (15.8 → 12.6 images/s), with the pages kept twice as fast (31). Fit 16:
a kept block may serve requests down to 1/65,536 of its size; with 1/64, the default, BERT in INT8 grew by 0.6
MiB a request of mixed lengths, now by none (seen). No background thread: it gives pages back, so here it has
nothing to do, but what is freed wakes it 6,500 times a second (BERT in INT8, seen)."""
ALLOCATOR_FLAGS = {
    "jemalloc": "--enable_jemalloc",
    "tcmalloc": "--enable_tcmalloc",
    # without any flag the launcher takes whatever it finds, tcmalloc first
    "system": "--use_default_allocator",
}
KMP_AFFINITY = "granularity=fine,compact,1,0"
"""The launcher's value: thread n on the worker's n-th core, SMT siblings last."""
UNBOUND_AFFINITY = "none"
"""KMP_AFFINITY where CPUs are shared: the launcher keeps a value that is there, and would bind each worker's
threads to the first CPUs. Not `disabled`: with that IPEX finds no CPUs, and its import fails (2.8)."""
KMP_BLOCKTIME_MS = "1"
"""The launcher's value: an idle thread spins 1 ms, not OpenMP's 200, because all models' workers share the
cores."""
PRIMITIVES_PER_SHAPE = 256
"""Kernels oneDNN caches for one shape of the input: ResNet50 has 54 convolution and linear layers,
DenseNet121 121, BERT 74."""
HOST = "127.0.0.1"


def plan_environment(draft: Draft, plans: Mapping[str, ModelPlan]) -> dict[str, str]:
    """What is set on TorchServe and inherited by the workers."""
    environment, launch = _plan_process(draft.models, draft.libraries), draft.launch
    if draft.kit:
        largest = max(draft.models, key=ModelDefinition.count_shapes)
        draft.why["environment.ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = (
            f"{largest.count_shapes()} shapes that {largest.name} may warm × {PRIMITIVES_PER_SHAPE} kernels"
        )
        options = {
            name: {
                "backend": plan.backend,
                "precision": plan.precision,
                "batch": plan.batch_size,
                "threads": draft.layout.cores,
                **({"off": plan.off} if plan.off else {}),
                **({"limits": dict(plan.limits)} if plan.limits else {}),
            }
            for name, plan in plans.items()
        }
        environment["CPU_KIT_OPTIONS"] = json.dumps(options, sort_keys=True, separators=(",", ":"))
    if launch.args is None:
        preloads = {"LD_PRELOAD": ":".join(list_preloads(draft.libraries))}
        return {**environment, **_plan_threads(draft), **(preloads if preloads["LD_PRELOAD"] else {})}
    return environment if launch.bound else {**environment, **_plan_affinity(draft)}


def plan_worker_environment(draft: Draft) -> dict[str, str | tuple[str, ...]]:
    """What workers must be seen with: set by the launcher, which is the proof that it ran and found the
    libraries, or by TorchServe from its properties (ConfigManager.getBackendConfiguration)."""
    return {
        "TS_DECODE_INPUT_REQUEST": str(not draft.kit).lower(),
        **{BACKENDS[one].switch_variable: str(one in draft.backends).lower() for one in SWITCHED.values()},
        **_plan_threads(draft),
        "LD_PRELOAD": list_preloads(draft.libraries),
        **({} if draft.launch.args is None else _plan_affinity(draft)),
    }


def plan_profile_environment(draft: Draft) -> dict[str, str]:
    """Of a worker that is timed, without the options of its model, which name its backend: the switch that
    TorchServe hands over is not read then."""
    switches = {BACKENDS[backend].switch_variable for backend in SWITCHED.values()}
    # The files themselves: the names the launcher looks for are linked when a server starts.
    files = [path for path in (draft.libraries.openmp_path, draft.libraries.allocator_path) if path]
    values = {**_plan_process(draft.models, draft.libraries), **plan_worker_environment(draft)}
    values["LD_PRELOAD"] = ":".join(files)
    return {name: str(value) for name, value in sorted(values.items()) if name not in switches}


def _plan_process(models: Sequence[ModelDefinition], libraries: Libraries) -> dict[str, str]:
    environment = {
        # On more threads it would leave the worker's cores or oversubscribe them.
        "TOKENIZERS_PARALLELISM": "false",
        # Where Triton is, importing a backend may start compilers beside each worker: 600 MiB, 3.5 s of CPU.
        "TORCH_WARM_POOL": "0",
    }
    if models:
        # Room for every warmed shape of the model with the most, as a power of two.
        shapes = max(model.count_shapes() for model in models)
        caches = (
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
            *(one.cache_bound for one in BACKENDS.values() if one.cache_bound),
        )
        environment |= dict.fromkeys(caches, str(1 << (PRIMITIVES_PER_SHAPE * shapes - 1).bit_length()))
    return {**environment, "MALLOC_CONF": MALLOC_CONF} if libraries.allocator == "jemalloc" else environment


def _plan_threads(draft: Draft) -> dict[str, str]:
    """Without KMP_AFFINITY: unpinned workers would all put their first thread on the same CPU."""
    blocktime = {"KMP_BLOCKTIME": KMP_BLOCKTIME_MS} if draft.libraries.openmp == "intel" else {}
    return {"OMP_NUM_THREADS": str(draft.layout.cores), **blocktime}


def _plan_affinity(draft: Draft) -> dict[str, str]:
    if draft.libraries.openmp != "intel":
        return {}
    return {"KMP_AFFINITY": KMP_AFFINITY if draft.launch.bound else UNBOUND_AFFINITY}


def list_preloads(libraries: Libraries) -> tuple[str, ...]:
    """In the launcher's order: each library it finds goes in front, the allocator before OpenMP."""
    return tuple(path for path in (libraries.openmp_path, libraries.allocator_link) if path)


def plan_properties(
    draft: Draft, plans: Mapping[str, ModelPlan], queue: int, *, store: str, folder: Path
) -> dict[str, str]:
    """All of config.properties but `models` and vmargs, which are rendered from the plan's models and JVM
    (keys of TorchServe 0.12's ConfigManager.java). `folder`: the instance's; `store`: of its archives."""
    args, libraries = draft.launch.args, draft.libraries
    flags = (
        args,
        ALLOCATOR_FLAGS[libraries.allocator],
        "" if libraries.openmp == "intel" else "--disable_iomp",
    )
    threads = str(count_frontend_threads(draft.topology))
    # The default version is the one that is loaded first (ModelVersionedRefs.java).
    files = [
        f"{name}={Path(file).name}"
        for name, model in plans.items()
        for _, file in sorted(model.archives.items(), key=lambda item: item[0] != model.version)
    ]
    return {
        **{switch: str(backend in draft.backends).lower() for switch, backend in SWITCHED.items()},
        "cpu_launcher_enable": str(args is not None).lower(),
        **({} if args is None else {"cpu_launcher_args": " ".join(filter(None, flags))}),
        "model_store": store,
        "workflow_store": store,
        "load_models": ",".join(files),
        "default_workers_per_model": str(len(draft.layout.chunks)),
        "job_queue_size": str(queue),
        "default_response_timeout": str(max(model.response_timeout_s for model in plans.values())),
        "number_of_gpu": "0",
        **{f"{name}_address": f"unix:{find_socket(folder, name)}" for name in SOCKETS},
        "grpc_inference_address": HOST,
        "grpc_inference_port": str(draft.port + 3),
        "grpc_management_address": HOST,
        "grpc_management_port": str(draft.port + 4),
        "initial_worker_port": str(draft.port + 920),
        "max_request_size": str(MAX_REQUEST_BYTES),
        "disable_token_authorization": "true",
        "enable_model_api": "false",
        "allowed_urls": render_allowed_urls(store),
        "enable_envvars_config": "false",
        "install_py_dep_per_model": "false",
        "number_of_netty_threads": threads,
        "netty_client_threads": threads,
        "decode_input_request": str(not draft.kit).lower(),
        "metrics_mode": "prometheus",
        "model_metrics_auto_detect": "true",
        "disable_system_metrics": "true",
    }


def render_allowed_urls(store: str) -> str:
    """A regular expression for archives directly in the store.

    TorchServe splits the value at commas and matches without regard to case, so everything but plain
    characters is written as its code, and (?-i) turns case back on.
    """
    plain = "/-_"
    quoted = (
        c if c.isascii() and (c.isalnum() or c in plain) else f"\\x{{{ord(c):x}}}" for c in store.rstrip("/")
    )
    return f"(?-i)file://{''.join(quoted)}/[^/]*\\.mar"
