"""Stand-in until the reverse proxy's configuration is rendered here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config.folders import find_temporary

ENDING = "proc.ending"


def name_prediction(model: str, unit: str) -> str:
    return f"proc.{model}_{unit}"


@dataclass(frozen=True, kw_only=True)
class ProxyFiles:
    """What haproxy.cfg names, absolute."""

    sockets: str
    admin_socket: str
    supervisor_socket: str
    bearers: str
    certificate: str

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
