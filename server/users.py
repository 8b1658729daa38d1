"""Servers of other users: they are named, and never half stopped or started over."""

from __future__ import annotations

import os

from config.folders import name_user
from server.errors import ServerError
from server.processes import find_hidden
from server.rundir import RunDir


def find_other_user(run: RunDir) -> str | None:
    """A sentence on the server of this run directory when it is another user's; None when there is none."""
    hidden = find_hidden(run.properties)
    if not hidden:
        return None
    process, uid = hidden[0]
    owner = name_user(uid)
    who = owner if uid == 0 else f"{owner} or as root"
    return (
        f"the server of {run.path} runs as {owner} (process {process.pid}), and this is "
        f"{name_user(os.geteuid())}: run the command as {who}"
    )


def check_own_server(run: RunDir) -> None:
    """Raise when the server of this run directory is another user's."""
    sentence = find_other_user(run)
    if sentence:
        raise ServerError(sentence)


def describe_root() -> str | None:
    """What it means to start as root; None for everyone else."""
    if os.geteuid() != 0:
        return None
    return (
        "note: started as root, so TorchServe and its workers run as root; as a user of its own: "
        "sudo -u USER make serve"
    )
