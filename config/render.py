"""Plan to files: config.properties with a reason above each key, and the environment."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping

from config.plan import Plan, Setting
from handlers.backends.catalogue import SWITCHED

ARCHIVE_VERSION = "1.0"
"""The version models/ packs. TorchServe looks a model's settings up under its archive's version and silently
ignores those of another."""

WIDTH = 108

SECTIONS: Mapping[str, str] = {
    "CPU": " ".join([*SWITCHED, "cpu_launcher_enable", "cpu_launcher_args"]),
    "Models": (
        "model_store workflow_store load_models models default_workers_per_model job_queue_size "
        "default_response_timeout number_of_gpu"
    ),
    "Addresses": (
        "inference_address management_address metrics_address grpc_inference_address grpc_inference_port "
        "grpc_management_address grpc_management_port initial_worker_port max_request_size"
    ),
    "Access": (
        "disable_token_authorization enable_model_api allowed_urls "
        "enable_envvars_config install_py_dep_per_model"
    ),
    "Frontend": (
        "number_of_netty_threads netty_client_threads decode_input_request metrics_mode "
        "model_metrics_auto_detect disable_system_metrics vmargs"
    ),
}
"""The order of config.properties, for the reader: TorchServe does not mind it."""


def render_properties(plan: Plan) -> str:
    """The text of config.properties."""
    models = Setting(value=render_models(plan), reason=_explain_models(plan))
    settings = {**plan.properties, "models": models}
    lines = ["# Written by `make plan` from plan.json; edits are lost. Change the inputs and run it again."]
    for title, keys in SECTIONS.items():
        lines += ["", f"# ---- {title} ----"]
        for key in keys.split():
            if key in settings:
                lines += [*_comment(settings[key].reason), f"{key}={escape_value(settings[key].value)}"]
    return "\n".join(lines) + "\n"


def render_models(plan: Plan) -> str:
    """The `models` key: TorchServe's own names, by model and archive version (Model.java)."""
    models = {
        name: {
            ARCHIVE_VERSION: {
                "defaultVersion": True,
                "marName": model.archive.value,
                "minWorkers": model.workers.value,
                "maxWorkers": model.workers.value,
                "batchSize": model.batch_size.value,
                "maxBatchDelay": model.max_batch_delay_ms.value,
                "responseTimeout": model.response_timeout_s.value,
                "startupTimeout": model.startup_timeout_s.value,
            }
        }
        for name, model in sorted(plan.models.items())
    }
    return json.dumps(models, separators=(",", ":"))


def escape_value(value: str) -> str:
    """As java.util.Properties reads it: Latin-1, backslash escapes, all beyond ASCII as UTF-16 codes."""
    text = value.replace("\\", "\\\\")
    if text.startswith(" "):
        text = "\\" + text
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


def render_environment(plan: Plan) -> str:
    """KEY=VALUE lines, reasons above; `server` sets them on TorchServe."""
    lines = ["# Written by `make plan` from plan.json; edits are lost."]
    for name, setting in sorted(plan.environment.items()):
        lines += ["", *_comment(setting.reason), f"{name}={setting.value}"]
    return "\n".join(lines) + "\n"


def _explain_models(plan: Plan) -> str:
    """One comment for all, because JSON in a properties file has no room for comments."""
    first = next(iter(plan.models.values()))
    models = sorted(plan.models.items())
    batches = _join({name: model.batch_size.reason for name, model in models})
    timeouts = _join({name: model.response_timeout_s.reason for name, model in models})
    return (
        f"per model and archive version: workers as planned; batch: {batches}; delay (ms): "
        f"{first.max_batch_delay_ms.reason}; responseTimeout (s): {timeouts}; "
        f"startupTimeout (s): {first.startup_timeout_s.reason}"
    )


def _join(reasons: Mapping[str, str]) -> str:
    """Models of different kinds and precisions have different reasons."""
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _comment(reason: str) -> list[str]:
    return textwrap.wrap(reason, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
