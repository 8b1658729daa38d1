"""Which ports the plan needs, whether they are free, and who holds one that is not (proc(5))."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping

from config.plan import INSTANCES_FOLDER, Plan
from config.proxy import render_address
from server.errors import ServerError
from server.processes import read_environment, read_process
from server.rundir import MARK

_LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
"""Addresses of all interfaces, loopback among them."""


def list_ports(plan: Plan, instance: str = "") -> dict[str, tuple[str, int]]:
    """Purpose → (host, port) of everything that HAProxy listens on, or an instance where it is named."""
    if not instance:
        proxy = plan.proxy
        return {
            "predictions": (proxy.host, proxy.port), "metrics": (proxy.metrics_host, proxy.metrics_port),
        }  # fmt: skip
    given = plan.instances[instance].properties
    names = ("inference", "management")
    return {f"gRPC {name}": (_LOOPBACK, int(given[f"grpc_{name}_port"])) for name in names}


def inference_url(plan: Plan) -> str:
    """Where predictions are asked for from here: a server that listens everywhere does so on loopback too."""
    host = _LOOPBACK if plan.proxy.host in EVERYWHERE else plan.proxy.host
    return f"{'https' if plan.proxy.tls_cert else 'http'}://{render_address(host, plan.proxy.port)}"


def check_ports_free(ports: Mapping[str, tuple[str, int]]) -> None:
    """ServerError when another process listens on one of `list_ports`."""
    taken: dict[str, list[str]] = {}
    for purpose, (host, port) in ports.items():
        if not is_free(host, port):
            taken.setdefault(describe_holder(port), []).append(f"{port} ({purpose})")
    if taken:
        lines = [f"port {', '.join(ports)} is taken by {holder}" for holder, ports in taken.items()]
        raise ServerError("; ".join(lines) + "; stop it, or choose another port: make serve PORT=…")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now; connections still closing (TIME_WAIT) do not matter."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def describe_holder(port: int) -> str:
    """The process that listens there, for a person."""
    pid = find_holder(port)
    process = read_process(pid) if pid else None
    if process is None:
        return "a process that cannot be seen from here (another user's, or outside this container)"
    if mark := (read_environment(process.pid) or {}).get(MARK):
        run = mark.partition(f"/{INSTANCES_FOLDER}/")[0]
        return f"process {pid}, the server of the run directory {run} (make stop RUN_DIR={shlex.quote(run)})"
    return f"process {pid} ({' '.join(process.command)[:80]})"


def find_holder(port: int) -> int | None:
    """Id of the process that listens on the port; None when it may not be seen."""
    import psutil  # 40 ms, which `make status` need not take

    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return next((one.pid for one in listening if one.laddr.port == port and one.pid), None)
