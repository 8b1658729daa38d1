"""Reads the evidence of TorchServe's own process: sockets, flags, key file, configuration, its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from config.plan import Plan
from server.api import Client
from server.processes import PROC, Process, read_environment
from server.rundir import RunDir
from server.running import digest_file
from server.state import State
from server.verify.evidence import FrontendEvidence
from server.verify.probes import probe
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
    largest = int(str(plan.properties["max_request_size"].value))
    return FrontendEvidence(
        listening=read_listening(processes, proc),
        answers=probe(client, next(iter(plan.models)), largest),
        key_file_mode=_read_mode(run.key_file),
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


def _read_mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode & 0o777
    except OSError:
        return None
