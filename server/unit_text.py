"""Renders a systemd unit from what is known of a server (systemd.exec(5), systemd.syntax(7)).

The lines that are the same everywhere, with their reasons, are in cpu-kit.service.template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from server.errors import ServerError

TEMPLATE = Path(__file__).with_name("cpu-kit.service.template")
AS_ROOT = (
    "# The checkout is root's, so all runs as root, if without capabilities: better give it to a user.\n"
)
ROOT = ("root", "0")
WATCHDOG_S = 30
RESTART_S = 10
BURST = 3
NOTIFIES = """\
# Up when each worker has answered right, which the supervisor says: a child of the process started here,
# hence "all". The supervisor takes the socket's name out of its environment, so workers do not inherit it.
Type=notify
NotifyAccess=all"""
IS_SILENT = """\
# FRONT=none has no supervisor to say when it is ready, or that it lives: `make status` does.
Type=exec"""
WATCHDOG = f"""\
# The supervisor's loop turns twice a second and says so; one that ends a hung instance takes a few seconds.
WatchdogSec={WATCHDOG_S}
"""
HOMES = ("/home", "/root", "/run/user")
"""What ProtectHome= hides."""
TEMPORARY = ("/tmp", "/var/tmp")
"""What PrivateTmp= hides."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the unit is made of."""

    checkout: Path
    """Where the kit's code is."""
    run: Path
    """The run directory."""
    user: str
    """Whose checkout it is; the server runs as that user."""
    python: Path
    """Of the virtual environment, by the name that makes it one."""
    needed: tuple[Path, ...]
    """Folders and files the server reads: checkout, environment, interpreter, archives, certificates."""
    temporary: Path
    """Where the sockets are."""
    models: tuple[str, ...]
    """What is served."""
    supervised: bool
    """Whether a supervisor owns it, which tells systemd how it is."""
    bind: str
    """Where predictions are served."""
    start_s: int
    """A start takes no longer."""
    stop_s: int
    """Nor does a stop."""
    path: str
    """PATH, with what java needs."""
    java_home: str
    """JAVA_HOME; "" where none is set."""


def quote(text: str) -> str:
    """One word of a unit, for all settings that split at blanks (systemd.syntax(7))."""
    inside = escape(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside}"'


def escape(text: str) -> str:
    """A value that is not split; specifiers begin with a percent sign."""
    if _UNSAFE.search(text) or text != text.strip():
        raise ServerError(
            f"a unit cannot name a path with control characters or blanks at its ends: got {text!r}; "
            "move the checkout or give another RUN_DIR"
        )
    return text.replace("%", "%%")


def _is_below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _render_homes(facts: Facts) -> list[str]:
    """Hidden altogether, but for what is served from there."""
    at_home = [path for path in facts.needed if _is_below(path, HOMES)]
    if not at_home and not _is_below(facts.run, HOMES):
        return ["# Nothing of the kit lies in a home folder.", "ProtectHome=yes"]
    shown = [
        path for path in at_home if not any(path != other and path.is_relative_to(other) for other in at_home)
    ]
    return [
        "# Of the home folders only what is served from there can be seen: no keys, no documents.",
        "ProtectHome=tmpfs",
        *(f"BindReadOnlyPaths={quote(str(path))}" for path in shown),
        *([f"BindPaths={quote(str(facts.run))}"] if _is_below(facts.run, HOMES) else []),
    ]


def _render_temporary(facts: Facts) -> list[str]:
    if not facts.temporary.is_relative_to(facts.run):
        return [
            "# RUN_DIR is too long a name for sockets: each start makes their folder here, where status and",
            "# stop look for it from outside.",
            "PrivateTmp=no",
            f"ReadWritePaths={quote(str(facts.temporary.parent))}",
        ]
    hidden = [path for path in (facts.run, *facts.needed) if _is_below(path, TEMPORARY)]
    if hidden:
        return [f"# It would hide {hidden[0]}.", "PrivateTmp=no"]
    return [
        "# The sockets are in RUN_DIR; what else takes /tmp, such as the JVM, has one of its own.",
        "PrivateTmp=yes",
    ]


def _render_addresses(facts: Facts) -> list[str]:
    if not facts.bind.startswith("127."):
        return ["# Who may ask from where, a firewall says, or IPAddressAllow= here; the kit calls nobody."]
    return [
        "# It serves on loopback and calls nobody else.",
        "IPAddressDeny=any",
        "IPAddressAllow=localhost",
    ]


def render_unit(facts: Facts) -> str:
    """The whole file."""
    command = [f":{facts.python}", "-m", "server", "start", "--foreground", "--run-dir", str(facts.run)]
    mounts = dict.fromkeys([facts.checkout, facts.run, *facts.needed])
    java_home = f"Environment={quote(f'JAVA_HOME={facts.java_home}')}\n" if facts.java_home else ""
    return TEMPLATE.read_text(encoding="utf-8").format(
        models=escape(", ".join(facts.models)),
        mounts=" ".join(quote(str(path)) for path in mounts),
        burst=BURST,
        burst_s=BURST * (facts.start_s + facts.stop_s + RESTART_S),
        restart_s=RESTART_S,
        readiness=NOTIFIES if facts.supervised else IS_SILENT,
        watchdog=WATCHDOG if facts.supervised else "",
        # A colon: a dollar sign in a path is one.
        command=" ".join(map(quote, command)),
        directory=escape(str(facts.checkout)),
        user=facts.user,
        as_root=AS_ROOT if facts.user in ROOT else "",
        start_s=facts.start_s,
        stop_s=facts.stop_s,
        path=quote(f"PATH={facts.path}"),
        java_home=java_home,
        run=quote(str(facts.run)),
        temporary="\n".join(_render_temporary(facts)),
        homes="\n".join(_render_homes(facts)),
        addresses="\n".join(_render_addresses(facts)),
    )
