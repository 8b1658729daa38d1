"""Reads the evidence of TorchServe's own process: sockets, flags, configuration, its answers."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from config.plan import Plan
from config.rules.network import SOCKETS
from server.api import Client
from server.processes import PROC, Process, read_environment
from server.rundir import RunDir
from server.running import digest_file
from server.state import State
from server.verify.evidence import FrontendEvidence
from server.verify.probes import GRPC, probe
from server.verify.sockets import read_listening

# What the torchserve command puts before the flags of config.properties (ts/model_server.py).
_OF_THE_COMMAND = ("-Dmodel_server_home=", "-Dlog4j.configurationFile=", "-Djava.io.tmpdir=")


def collect_frontend(
    plan: Plan,
    run: RunDir,
    client: Client,
    processes: Sequence[Process],
    state: State | None,
    proc: Path = PROC,
) -> FrontendEvidence:
    """Of the processes, one is TorchServe's java."""
    java = next(process for process in processes if process.is_java)
    folder = run.temporary.stat() if run.temporary.exists() else None
    ports = {key: int(plan.properties[key].value) for key, _ in GRPC.values()}
    largest = int(str(plan.properties["max_request_size"].value))
    return FrontendEvidence(
        listening=read_listening(processes, proc),
        answers=probe(client, next(iter(plan.models)), largest, ports),
        sockets=tuple(name for name in SOCKETS if (run.temporary / f"{name}.sock").is_socket()),
        sockets_mode=stat.S_IMODE(folder.st_mode) if folder else 0,
        sockets_own=folder is not None and folder.st_uid == run.path.stat().st_uid,
        flags=find_flags(java.command),
        environment=read_environment(java.pid, proc),
        configuration=state.configuration if state else {},
        properties_now=digest_file(run.properties),
        properties_at_start=state.properties_sha256 if state else None,
    )


def find_flags(command: Sequence[str]) -> tuple[str, ...]:
    """The JVM's flags on java's command line: all before the class path that the plan may have asked for."""
    end = command.index("-cp") if "-cp" in command else len(command)
    return tuple(word for word in command[1:end] if not word.startswith(_OF_THE_COMMAND))
