"""The switches of TorchServe that decide what runs: models, workers, launcher, backends, threads, metrics."""

from __future__ import annotations

from collections.abc import Mapping

from config.plan import Inputs, Libraries, ModelPlan, Setting
from config.rules.java import count_frontend_threads
from config.rules.libraries import render_library_flags
from config.rules.pinning import Pinning
from config.topology import Topology
from handlers.backends.catalogue import BACKENDS, SWITCHED, Backend


def plan_cpu_switches(
    models: Mapping[str, ModelPlan], pinning: Pinning, libraries: Libraries
) -> dict[str, Setting]:
    """Backends that TorchServe has a switch for, and the launcher."""
    settings = {name: _plan_backend(BACKENDS[backend], models) for name, backend in SWITCHED.items()}
    if pinning.args is None:
        return {**settings, "cpu_launcher_enable": Setting(value="false", reason=pinning.args_reason)}
    args = " ".join(part for part in (pinning.args.render(), render_library_flags(libraries)) if part)
    return {
        **settings,
        "cpu_launcher_enable": Setting(
            value="true",
            reason=f"the launcher {'pins each worker to its cores' if pinning.bound else 'sets threads'} "
            "and preloads the libraries",
        ),
        "cpu_launcher_args": Setting(
            value=args,
            reason=f"{pinning.args_reason}; memory: {pinning.memory_reason}; "
            f"allocator {libraries.allocator.value}, OpenMP {libraries.openmp.value}",
        ),
    }


def _plan_backend(backend: Backend, models: Mapping[str, ModelPlan]) -> Setting:
    """On where it computes a model."""
    users = [name for name, model in models.items() if model.backend.value == backend.name]
    backends = ", ".join(f"{name} by {model.backend.value}" for name, model in models.items())
    reason = (
        f"it computes {', '.join(users)}: the handler does (TorchServe sets {backend.switch_variable} in the "
        "workers)"
        if users
        else f"it computes no model (BACKEND): {backends}"
    )
    return Setting(value=str(bool(users)).lower(), reason=reason)


def plan_models_switches(inputs: Inputs, models: Mapping[str, ModelPlan], workers: int) -> dict[str, Setting]:
    """What is loaded, and how often."""
    archives = ",".join(f"{name}={model.archive.value}" for name, model in models.items())
    queue = next(iter(models.values())).queue_size
    return {
        "model_store": Setting(value=inputs.model_store, reason="the folder of the built archives"),
        "workflow_store": Setting(value=inputs.model_store, reason="no workflows; TorchServe wants a folder"),
        "load_models": Setting(
            value=archives, reason="by name: `all` would take every file and folder for a model"
        ),
        "default_workers_per_model": Setting(
            value=str(workers),
            reason="as for each model below; the default would be one per CPU the JVM sees",
        ),
        "job_queue_size": Setting(value=str(queue.value), reason=queue.reason),
        "default_response_timeout": Setting(
            value=str(max(model.response_timeout_s.value for model in models.values())),
            reason="seconds, the longest of the models' own below: catches workers that hang",
        ),
        "number_of_gpu": Setting(
            value="0", reason="a graphics card in the machine must not change workers or devices"
        ),
    }


def plan_frontend(topology: Topology) -> dict[str, Setting]:
    """TorchServe's own work."""
    threads = count_frontend_threads(topology)
    reason = "they only pass bytes on: one per 8 working cores, at least 2; the default is two per CPU"
    return {
        "number_of_netty_threads": Setting(value=str(threads), reason=reason),
        "netty_client_threads": Setting(value=str(threads), reason="the same towards the workers"),
        "decode_input_request": Setting(
            value="false",
            reason="the handler parses JSON and texts itself, after a look at their size: TorchServe's part "
            "of the worker makes 360 MB of 16 MiB of JSON, for each request of a batch",
        ),
        "metrics_mode": Setting(
            value="prometheus", reason="kept in memory and scraped; `log` writes for every request"
        ),
        "model_metrics_auto_detect": Setting(
            value="true",
            reason="the handlers' own counters (TextTokens, TextTokensComputed) reach Prometheus undeclared",
        ),
        "disable_system_metrics": Setting(
            value="true", reason="the collector starts a Python process every minute on the workers' cores"
        ),
    }
