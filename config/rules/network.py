"""Where HAProxy and TorchServe listen, and what TorchServe lets in (keys of its ConfigManager.java, 0.12)."""

from __future__ import annotations

from config.plan import Inputs, Setting

HOST = "127.0.0.1"

TOKEN_LIFE_MIN = 10 * 365 * 24 * 60
"""TorchServe reads a floating-point number and adds its seconds to the clock as a 64-bit number: no
overflow here."""

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


def plan_addresses(inputs: Inputs) -> dict[str, Setting]:
    """Of an instance: all ports count from its first one."""
    return {
        "inference_address": Setting(
            value=f"http://{HOST}:{inputs.port}", reason="predictions, for HAProxy alone"
        ),
        "management_address": Setting(
            value=f"http://{HOST}:{inputs.port + 1}", reason="PORT + 1: describe, status"
        ),
        "metrics_address": Setting(
            value=f"http://{HOST}:{inputs.port + 2}", reason="PORT + 2: Prometheus metrics"
        ),
        "grpc_inference_address": Setting(
            value=HOST, reason="gRPC listens too and cannot be switched off; the agent refuses every call"
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
            value="false", reason="every request shows a token of key_file.json"
        ),
        "token_expiration_min": Setting(
            value=str(TOKEN_LIFE_MIN),
            reason="ten years: a token lives as long as the server; each start makes new ones (the default, "
            "60 minutes, would stop running clients, and /ping with them)",
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
