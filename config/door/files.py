"""Where HAProxy finds its sockets and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config.folders import find_temporary

LISTENER = "KIT_DOOR"
"""Variable with what the door listens on: an address, or a socket that is open already."""


def name_state(instance: str) -> str:
    """Variable that says whether an instance may be asked from the first moment on."""
    return f"KIT_STATE_{instance}"


@dataclass(frozen=True, kw_only=True)
class DoorFiles:
    """Absolute paths without blanks or quotes of their own meaning; the renderer quotes them."""

    sockets: str
    """A folder for the sockets between the hops, of this user alone."""
    admin_socket: str
    """HAProxy's runtime commands."""
    supervisor_socket: str
    """Who answers /ready and /live (HTTP)."""
    bearers: str
    """What the header Authorization may be, one value a line."""
    certificate: str
    """Where TLS is asked for: certificate, chain and key (PEM)."""

    @classmethod
    def of(cls, run_dir: Path) -> DoorFiles:
        """Those of a run directory."""
        sockets = find_temporary(run_dir)
        return cls(
            sockets=str(sockets),
            admin_socket=str(sockets / "admin.sock"),
            supervisor_socket=str(sockets / "supervisor.sock"),
            bearers=str(run_dir / "bearers.lst"),
            certificate=str(run_dir / "door.pem"),
        )
