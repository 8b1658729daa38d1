"""Libraries that workers preload, variables of TorchServe and its workers, keys of config.properties."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from config.archives import ModelDefinition
from config.errors import ConfigError
from config.installed import ALLOCATOR_PACKAGES, OPENMP_FILE
from config.plan import InstancePlan, Libraries
from config.planning.facts import Facts
from config.planning.proxy import MAX_REQUEST_BYTES
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
REASONS = {
    "jemalloc": "with page return off it keeps the activations' memory: ResNet50 doubled over glibc's malloc",
    "tcmalloc": "as fast as jemalloc for these models",
    "system": "glibc's malloc gives large blocks back after each batch and pays in page faults",
    "intel": "Intel's kernels are tuned for it, and KMP_AFFINITY can pin its threads one to a core",
    "gnu": "torch's own libgomp, which no launcher setting pins inside the worker's CPUs",
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


def plan_libraries(facts: Facts, why: dict[str, str]) -> Libraries:
    """Real files, and the names that the launcher looks for; ConfigError for one that is missing on a live
    machine."""
    settings, installed = facts.settings, facts.installed
    allocator, openmp = settings.allocator or "jemalloc", settings.openmp or "intel"
    for name, chosen in (("allocator", allocator), ("openmp", openmp)):
        way = f"{name.upper()} was given" if getattr(settings, name) else "default"
        why[f"libraries.{name}"] = f"{way}: {REASONS[chosen]}"
    if facts.live and allocator != "system" and allocator not in installed.allocators:
        raise ConfigError(
            f"ALLOCATOR={allocator}: its library is not on this machine: install it (apt install "
            f"{ALLOCATOR_PACKAGES[allocator]}) or use ALLOCATOR=system"
        )
    openmp_path = f"{facts.prefix}/lib/{OPENMP_FILE}" if openmp == "intel" else None
    if facts.live and openmp_path and installed.openmp is None:
        raise ConfigError(
            f"OPENMP=intel: {openmp_path} is missing: run `make setup` (pip install intel-openmp) or use "
            "OPENMP=gnu"
        )
    return Libraries(
        allocator=allocator, allocator_path=installed.allocators.get(allocator),
        allocator_link=None if allocator == "system" else f"{facts.prefix}/lib/lib{allocator}.so",
        openmp=openmp, openmp_path=openmp_path,
    )  # fmt: skip


def plan_environment(
    instance: InstancePlan, models: Sequence[ModelDefinition], libraries: Libraries, backends: Collection[str]
) -> tuple[dict[str, str], dict[str, str | tuple[str, ...]]]:
    """(What is set on TorchServe and inherited by the workers, what workers must be seen with besides): the
    latter is set by the launcher, which is the proof that it ran and found the libraries, or by TorchServe
    from its properties (ConfigManager.getBackendConfiguration). `models`: the kit's; `backends`: that compute
    in it."""
    launched, pinned, cores = instance.launched, instance.pinned, instance.cores_per_worker
    intel = libraries.openmp == "intel"
    threads = {"OMP_NUM_THREADS": str(cores), **({"KMP_BLOCKTIME": KMP_BLOCKTIME_MS} if intel else {})}
    # Not without the launcher: unpinned workers would all put their first thread on the same CPU.
    affinity = {"KMP_AFFINITY": KMP_AFFINITY if pinned else UNBOUND_AFFINITY} if intel and launched else {}
    # In the launcher's order: each library it finds goes in front, the allocator before OpenMP.
    preloads = tuple(path for path in (libraries.openmp_path, libraries.allocator_link) if path)
    environment = {
        # On more threads it would leave the worker's cores or oversubscribe them.
        "TOKENIZERS_PARALLELISM": "false",
        # Where Triton is, importing a backend may start compilers beside each worker: 600 MiB, 3.5 s of CPU.
        "TORCH_WARM_POOL": "0",
    }
    if instance.kit:
        # Room for every warmed shape of the model with the most, as a power of two.
        kernels = PRIMITIVES_PER_SHAPE * max(model.count_shapes() for model in models)
        bounds = filter(None, (one.cache_bound for one in BACKENDS.values()))
        capacity = str(1 << (kernels - 1).bit_length())
        environment |= dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", *bounds), capacity)
    if libraries.allocator == "jemalloc":
        environment["MALLOC_CONF"] = MALLOC_CONF
    if not launched:
        environment |= {**threads, **({"LD_PRELOAD": ":".join(preloads)} if preloads else {})}
    elif not pinned:
        environment |= affinity
    return environment, {
        "TS_DECODE_INPUT_REQUEST": str(not instance.kit).lower(),
        **{BACKENDS[one].switch_variable: str(one in backends).lower() for one in SWITCHED.values()},
        **threads,
        "LD_PRELOAD": preloads,
        **affinity,
    }


def plan_properties(
    instance: InstancePlan,
    libraries: Libraries,
    args: str | None,
    backends: Collection[str],
    *,
    threads: int,
    store: str,
    folder: Path,
) -> dict[str, str]:
    """config.properties but for what models decide (keys of TorchServe 0.12's ConfigManager.java), `models`
    and vmargs, which are rendered from the plan. `args`: of the launcher, which select CPUs; `threads`: that
    pass bytes on; `folder`: the instance's; `store`: of its archives."""
    iomp = "" if libraries.openmp == "intel" else "--disable_iomp"
    flags = filter(None, (args, ALLOCATOR_FLAGS[libraries.allocator], iomp))
    return {
        **{switch: str(backend in backends).lower() for switch, backend in SWITCHED.items()},
        "cpu_launcher_enable": str(instance.launched).lower(),
        **({"cpu_launcher_args": " ".join(flags)} if instance.launched else {}),
        "model_store": store,
        "workflow_store": store,
        "default_workers_per_model": str(len(instance.worker_cpus)),
        "number_of_gpu": "0",
        **{f"{name}_address": f"unix:{find_socket(folder, name)}" for name in SOCKETS},
        "grpc_inference_address": HOST,
        "grpc_inference_port": str(instance.port + 3),
        "grpc_management_address": HOST,
        "grpc_management_port": str(instance.port + 4),
        "initial_worker_port": str(instance.port + 920),
        "max_request_size": str(MAX_REQUEST_BYTES),
        "disable_token_authorization": "true",
        "enable_model_api": "false",
        "allowed_urls": render_allowed_urls(store),
        "enable_envvars_config": "false",
        "install_py_dep_per_model": "false",
        "number_of_netty_threads": str(threads),
        "netty_client_threads": str(threads),
        "decode_input_request": str(not instance.kit).lower(),
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
