"""Where HAProxy and TorchServe listen, and what TorchServe lets in (keys of its ConfigManager.java, 0.12)."""

from __future__ import annotations

from pathlib import Path

from config.folders import find_temporary
from config.plan import INSTANCES_FOLDER, Inputs, Setting

HOST = "127.0.0.1"

MAX_REQUEST_BYTES = 16 << 20
"""A phone's photo is up to 12 MB; base64 in JSON adds a third."""


def plan_proxy_addresses(inputs: Inputs) -> dict[str, Setting]:
    """Of HAProxy."""
    scheme = "https" if inputs.tls_cert else "http"
    return {
        "inference_address": Setting(
            value=f"{scheme}://{inputs.bind}:{inputs.port}", reason="HAProxy: predictions, /ready and /live"
        ),
        "metrics_address": Setting(
            value=f"http://{HOST}:{inputs.port + 2}", reason="PORT + 2: HAProxy's Prometheus metrics"
        ),
    }


SOCKETS = ("inference", "management", "metrics")
"""Each of these addresses of TorchServe is a Unix socket: <name>.sock."""


def find_socket(run_dir: str, name: str) -> str:
    """Path of one of an instance's sockets, in a folder that only its user may enter (mode 700)."""
    return str(find_temporary(Path(run_dir)) / f"{name}.sock")


def find_instance_socket(inputs: Inputs, instance: str) -> str:
    """Where HAProxy asks an instance, there now or after a reload, for predictions."""
    return find_socket(f"{inputs.run_dir}/{INSTANCES_FOLDER}/{instance}", "inference")


def plan_addresses(inputs: Inputs) -> dict[str, Setting]:
    """Of an instance: REST on Unix sockets, gRPC on two TCP ports counted from the instance's."""
    whom = {"inference": "predictions", "management": "describe", "metrics": "Prometheus metrics"}
    return {
        **{
            f"{name}_address": Setting(
                value=f"unix:{find_socket(inputs.run_dir, name)}",
                reason=f"{whom[name]}; in a folder of mode 700: HAProxy and this user alone reach it",
            )
            for name in SOCKETS
        },
        "grpc_inference_address": Setting(
            value=HOST, reason="gRPC listens too and cannot be switched off; every call is rejected"
        ),
        "grpc_inference_port": Setting(value=str(inputs.port + 3), reason="PORT + 3"),
        "grpc_management_address": Setting(value=HOST, reason="as for inference"),
        "grpc_management_port": Setting(value=str(inputs.port + 4), reason="PORT + 4"),
        "initial_worker_port": Setting(
            value=str(inputs.port + 920),
            reason="PORT + 920 upwards: only the names of the workers' Unix sockets",
        ),
        "max_request_size": Setting(
            value=str(MAX_REQUEST_BYTES),
            reason="bytes: a phone's photo, also as base64; TorchServe's 6.5 MB is too small",
        ),
    }


def plan_access(inputs: Inputs) -> dict[str, Setting]:
    """Nothing that was not planned gets in."""
    return {
        "disable_token_authorization": Setting(
            value="true",
            reason="HAProxy asks for the token; the sockets behind it are closed to other users",
        ),
        "enable_model_api": Setting(
            value="false", reason="nobody registers or deletes models in a running server"
        ),
        "allowed_urls": Setting(
            value=render_allowed_urls(inputs.model_store),
            reason="archives come from the model store only (a Java regular expression)",
        ),
        "enable_envvars_config": Setting(
            value="false", reason="no TS_… variable of a shell may overrule this file in silence"
        ),
        "install_py_dep_per_model": Setting(
            value="false", reason="an archive never installs packages into a serving machine"
        ),
    }


def render_allowed_urls(model_store: str) -> str:
    """A regular expression for archives directly in the store.

    TorchServe splits the value at commas and matches without regard to case, so everything but plain
    characters is written as its code, and (?-i) turns case back on.
    """
    return f"(?-i)file://{_quote(model_store.rstrip('/'))}/[^/]*\\.mar"


def _quote(path: str) -> str:
    plain = "/-_"
    return "".join(c if c.isascii() and (c.isalnum() or c in plain) else f"\\x{{{ord(c):x}}}" for c in path)
