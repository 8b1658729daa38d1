"""Reads the logs of TorchServe 0.12: its configuration, the first worker that failed to load, and why."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.rundir import RunDir
from server.state import Failure

# 2025-01-01T00:00:00,000 [INFO ] W-9000-resnet50_1.0-stdout MODEL_LOG - text
_MODEL_LINE = re.compile(r"^\S+ \[[A-Z]+ *\] (W-\d+-(.+)_[^_]+)-std(?:out|err) MODEL_LOG - (.*)$")
# … org.pytorch.serve.wlm.WorkerThread - W-9000-resnet50_1.0 State change WORKER_STARTED -> WORKER_STOPPED
_STATE_LINE = re.compile(r" - (W-\d+-(.+)_[^_]+) State change \S+ -> (WORKER_STOPPED|WORKER_ERROR)$")
# … [WARN ] main org.pytorch.serve.ModelServer - Failed to load model: resnet50.mar
_ARCHIVE_LINE = re.compile(r" org\.pytorch\.serve\.ModelServer - Failed to load model: (.*)$")
_EXCEPTION_LINE = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::.*)?$"
)
# Follow-ups of an earlier exception, which is the cause: TorchServe's own summary, and its search for a
# bundled handler of the same name after the archive's handler could not be imported (model_loader.py).
_FOLLOW_UPS = re.compile(
    r"^RuntimeError: \d{3} - |ts\.torch_handler\.|^ValueError: Unable to load handler|not a package$"
)
# Printed by every worker on its way up.
_ROUTINE = re.compile(
    r"^(\[PID\]|Torch worker started|Python runtime|Connection accepted|Listening on|s_name_part|"
    r"Successfully loaded|model_name: |\[METRICS\]|.* - __main__ - INFO - )"
)
_JAVA_CAUSES = re.compile(
    r"^(Invalid configuration|Error occurred|Error: |Caused by|--\S+ .*not found|java not found)|Exception"
)
_JAVA_FRAME = re.compile(r"^\s+(at |\.\.\. )")
# Printed by every healthy start.
_CONSOLE_ROUTINE = re.compile(
    r"^(Warning: TorchServe is using|WARNING: sun\.reflect|nvidia-smi not|Model server started)"
)
# … [ERROR] main org.pytorch.serve.ModelServer - text
_SERVER_ERROR = re.compile(r"^\S+ \[(?:ERROR|FATAL) *\] .*? - (.+)$", re.MULTILINE)
_LINES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class WorkerLine:
    """One line a worker printed."""

    worker: str
    """TorchServe's name of the worker: W-<port>-<model>_<version>."""
    model: str
    """The model's name."""
    text: str
    """What the worker printed."""


def find_failure(model_log: str, server_log: str, *, log: str = "", oom_kills: int = 0) -> Failure | None:
    """The first failure in the logs of one start, or None; `oom_kills` counts the kernel's since it began."""
    matches = (_MODEL_LINE.match(line) for line in model_log.splitlines())
    lines = [WorkerLine(worker=m[1], model=m[2], text=m[3]) for m in matches if m]
    reported = next((entry for entry in map(_parse_report, lines) if entry), None)
    if reported:
        model, step, cure = (reported.get(name) for name in ("model", "step", "cure"))
        cause = str(reported.get("cause") or "no cause given")
        return Failure(model=model, step=step, cause=cause, cure=cure, log=log)
    archive = next((m for m in map(_ARCHIVE_LINE.search, server_log.splitlines()) if m), None)
    if archive:
        return _explain_archive(archive[1], server_log, log)
    stopped = next((m for m in map(_STATE_LINE.search, server_log.splitlines()) if m), None)
    return _explain_worker(stopped[1], stopped[2], lines, server_log, log, oom_kills) if stopped else None


def _parse_report(line: WorkerLine) -> dict[str, Any] | None:
    """Our handler's own line about a failed load."""
    if '"load_failed"' not in line.text:
        return None
    try:
        entry = json.loads(line.text)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and entry.get("cpu_kit") == "load_failed" else None


def _explain_archive(path: str, server_log: str, log: str) -> Failure:
    exceptions = [
        line.strip() for line in server_log.splitlines() if re.match(r"^(\w+\.)+\w+(Exception|Error): ", line)
    ]
    name = Path(path).name
    return Failure(
        model=name.rsplit(".", 1)[0],
        step="open the archive",
        cause=f"TorchServe cannot load {name}: {exceptions[0] if exceptions else 'no reason logged'}",
        cure="build it again: make models",
        log=log,
    )


def _explain_worker(
    worker: str, model: str, lines: list[WorkerLine], server_log: str, log: str, ooms: int
) -> Failure:
    own = [line.text for line in lines if line.worker == worker]
    telling = [text for text in own if not _ROUTINE.match(text)]
    exception = find_exception(own)
    cause = exception or _find_java_reason(worker, server_log)
    if cause is None:
        cause = "the process ended while loading, without a Python exception (killed? exit in a library?)"
    cure = None
    if ooms:
        if not exception:
            cause = f"killed: out of memory (the kernel killed {ooms} process(es) meanwhile)"
        cure = "give the machine more memory, or plan fewer workers: make serve WORKERS=1"
    return Failure(model=model, cause=cause, cure=cure, log=log, lines=_choose_lines(telling, exception))


def _choose_lines(telling: list[str], exception: str | None) -> tuple[str, ...]:
    """The lines that lead to the exception, else the last ones."""
    ends = [number for number, text in enumerate(telling, 1) if text.strip() == exception]
    end = ends[-1] if ends else len(telling)
    return tuple(telling[max(0, end - _LINES_SHOWN) : end])


def find_exception(lines: list[str]) -> str | None:
    """The exception a worker's lines end in; follow-ups that only repeat it do not count."""
    found = [text.strip() for text in lines if _EXCEPTION_LINE.match(text)]
    causes = [text for text in found if not _FOLLOW_UPS.search(text)]
    ranked = causes or found
    return ranked[-1] if ranked else None


def _find_java_reason(worker: str, server_log: str) -> str | None:
    """What TorchServe's thread of this worker says, such as a time-out."""
    lines = server_log.splitlines()
    for number, line in enumerate(lines[:-1]):
        if f" {worker} " in line and "Backend worker error" in line:
            return lines[number + 1].rsplit("Exception: ", 1)[-1].strip()
    return None


def explain_server_death(console: str, log: str, server_log: str = "") -> Failure:
    """Why TorchServe itself ended, from what the JVM printed, else from the last error it logged."""
    lines = [line.rstrip() for line in console.splitlines() if line.strip() and not _JAVA_FRAME.match(line)]
    causes = [line.strip() for line in lines if _JAVA_CAUSES.search(line)]
    said = [line for line in lines if not _CONSOLE_ROUTINE.match(line)]
    said = said or _SERVER_ERROR.findall(server_log)[-1:]
    cause = causes[0] if causes else (said[-1] if said else "it said nothing (killed? out of memory?)")
    return Failure(cause=f"TorchServe ended: {cause}", log=log, lines=tuple(said[-_LINES_SHOWN:]))


def read_log(path: Path) -> str:
    """A log's text; empty when it is not there (yet)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Processes the kernel killed for want of memory since boot; 0 when it does not say."""
    words = read_log(vmstat).split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Watches the logs of one start."""

    run: RunDir
    """The server's files."""
    oom_kills_before: int
    """Count of the kernel when the start began."""

    def find(self) -> Failure | None:
        """The first failure so far."""
        return find_failure(
            read_log(self.run.model_log),
            read_log(self.run.server_log),
            log=str(self.run.model_log),
            oom_kills=read_oom_kills() - self.oom_kills_before,
        )


_FIRST = "Torchserve version: "
_LAST = "Model API enabled: "


def read_configuration(log: Path) -> dict[str, str]:
    """Name → value as TorchServe prints them, of the first such block; {} when the log does not have them.

    Read it soon after the start: later the log may have been rolled over.
    """
    match = re.search(rf"^{_FIRST}.*?^{_LAST}[^\n]*$", read_log(log), re.MULTILINE | re.DOTALL)
    lines = match[0].splitlines() if match else []
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}
