"""Names, sockets and files that haproxy.cfg shares with the server (standard library only)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from config.folders import find_temporary

if TYPE_CHECKING:
    from config.plan import Plan

LISTENER = "KIT_LISTENER"
"""Variable with what the reverse proxy listens on: an address, or a socket that is open already (fd@3)."""

REQUESTS = "KIT_REQUESTS"
"""Variable with the log target of requests: a pipe that is open already (fd@4)."""

REQUEST_LINE = "request"
"""First word of a request's line; others are HAProxy's own messages."""
LOG_FORMAT = (
    f"{REQUEST_LINE} %ft %b %s %ST %tsc %TR %Tw %Tr %Ta %ci %[unique-id] %[var(txn.trace)] %HM %HP "
    "%[var(txn.reason)] %[var(txn.cause)]"
)
"""Of a request's line: place, status and termination state, ms of its parts, who, what and why; the cause,
which may hold blanks, is the last. A worker of the kit names it in a header (handlers/kit_handler.py)."""

ENDING = "proc.ending"
"""Variable of the HAProxy process: 1 once the server is stopping."""

PROTOCOL = "x-kit-protocol"
"""Header: the protocol of a prediction's body, by its address (protocols.py)."""
FORM_TYPE = "x-multipart/"
"""In place of multipart/ in the Content-Type of a form for a kit model (handlers/request.py)."""

GENERATIONS = ("a", "b")
"""A reload starts the other one beside the one that serves."""

MAX_INSTANCES = 4
"""Of each generation: haproxy.cfg has a server line for every one, so that a reload needs no restart."""

INSTANCE_NAMES = tuple(f"{one}{number}" for one in GENERATIONS for number in range(1, MAX_INSTANCES + 1))
"""Of every instance that there may ever be, in the order of their ports."""

PORTS_OF_INSTANCE = 10
"""From one instance's first port to the next one's; each takes five."""

SOCKETS = ("inference", "management", "metrics")
"""Each of these addresses of TorchServe is a Unix socket: <name>.sock."""


@dataclass(frozen=True, kw_only=True)
class ProxyFiles:
    """Absolute paths; haproxy.cfg quotes them."""

    sockets: str
    """A folder of this user alone for the sockets between the two hops."""
    admin_socket: str
    """HAProxy's runtime commands."""
    supervisor_socket: str
    """The supervisor's HTTP server for /ready and /live."""
    bearers: str
    """Accepted values of the header Authorization, one a line."""
    certificate: str
    """With TLS: certificate, chain and key (PEM)."""

    @classmethod
    def of(cls, run_dir: Path) -> ProxyFiles:
        """Those of a run directory."""
        sockets = find_temporary(run_dir)
        return cls(
            sockets=str(sockets),
            admin_socket=str(sockets / "admin.sock"),
            supervisor_socket=str(sockets / "supervisor.sock"),
            bearers=str(run_dir / "bearers.lst"),
            certificate=str(run_dir / "proxy.pem"),
        )


def find_socket(folder: Path, name: str) -> str:
    """Path of one of an instance's SOCKETS; `folder`: the instance's, RUN_DIR/instances/a1."""
    return str(find_temporary(folder) / f"{name}.sock")


def name_prediction(model: str, unit: str) -> str:
    """Variable of the HAProxy process with one of a model's two predictions: us or ms."""
    name = "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in model)
    return f"proc.{name}_{unit}"


def name_state(instance: str) -> str:
    """Variable with the state that an instance has when HAProxy starts: enabled or disabled."""
    return f"KIT_STATE_{instance}"


def render_address(host: str, port: int) -> str:
    """As HAProxy and URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def list_variables(
    plan: Plan, listener: str = "", requests: str = "stdout", serving: Collection[str] = ()
) -> dict[str, str]:
    """The environment that haproxy.cfg reads: what to listen on, where the lines of requests go, and which
    instances serve at once."""
    states = {name_state(name): "enabled" if name in serving else "disabled" for name in INSTANCE_NAMES}
    address = render_address(plan.proxy.host, plan.proxy.port)
    return {LISTENER: listener or address, REQUESTS: requests, **states}
