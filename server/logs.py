"""Reads the logs of TorchServe 0.12: its configuration, the first worker that failed to load, and why."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server.rundir import RunDir
from server.state import Failure

# 2025-01-01T00:00:00,000 [INFO ] W-9000-resnet50_1.0-stdout MODEL_LOG - text
_MODEL_LINE = re.compile(r"^\S+ \[[A-Z]+ *\] (W-\d+-.+_[^_]+)-std(?:out|err) MODEL_LOG - (.*)$", re.MULTILINE)
# … org.pytorch.serve.wlm.WorkerThread - W-9000-resnet50_1.0 State change WORKER_STARTED -> WORKER_STOPPED
_STATE_LINE = re.compile(
    r" - (W-\d+-(.+)_[^_\n]+) State change \S+ -> (?:WORKER_STOPPED|WORKER_ERROR)$", re.MULTILINE
)
# … [WARN ] main org.pytorch.serve.ModelServer - Failed to load model: resnet50.mar
_ARCHIVE_LINE = re.compile(r" org\.pytorch\.serve\.ModelServer - Failed to load model: (.*)$", re.MULTILINE)
_JAVA_EXCEPTION = re.compile(r"^ *((?:\w+\.)+\w+(?:Exception|Error): .*?) *$", re.MULTILINE)
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
LARGEST_LOG_BYTES = 10 << 20


def find_start_failure(run: RunDir, oom_kills_before: int) -> Failure | None:
    """The first failure so far in the logs of an instance that starts; the kernel counts since boot."""
    server_log, log = read_log(run.server_log), str(run.model_log)
    lines = _MODEL_LINE.findall(read_log(run.model_log))
    for _, text in lines:
        if reported := _parse_report(text):
            model, step, fix = (reported.get(name) for name in ("model", "step", "fix"))
            cause = str(reported.get("cause") or "no cause given")
            return Failure(model=model, step=step, cause=cause, fix=fix, log=log)
    if archive := _ARCHIVE_LINE.search(server_log):
        name, why = Path(archive[1]).name, _JAVA_EXCEPTION.search(server_log)
        cause = f"TorchServe cannot load {name}: {why[1] if why else 'no reason logged'}"
        fix = "build it again: make models"
        return Failure(model=Path(name).stem, step="open the archive", cause=cause, fix=fix, log=log)
    if stopped := _STATE_LINE.search(server_log):
        own = [text for worker, text in lines if worker == stopped[1]]
        exception, said = _find_exception(own), [text for text in own if not _ROUTINE.match(text)]
        ends = [number for number, text in enumerate(said, 1) if text.strip() == exception]
        shown = said[: ends[-1] if ends else None][-_LINES_SHOWN:]
        cause, fix = exception or _find_java_reason(stopped[1], server_log), None
        if oom_kills := read_oom_kills() - oom_kills_before:
            killed = f"killed: out of memory (the kernel killed {oom_kills} process(es) meanwhile)"
            cause, fix = exception or killed, "give the machine more memory, or plan fewer workers: WORKERS=1"
        return Failure(model=stopped[2], cause=cause, fix=fix, log=log, lines=tuple(shown))
    return None


def _parse_report(text: str) -> dict[str, Any] | None:
    """Our handler's own line about a failed load."""
    try:
        entry = json.loads(text) if '"load_failed"' in text else None
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and entry.get("cpu_kit") == "load_failed" else None


def _find_exception(lines: Sequence[str]) -> str | None:
    """The exception a worker's lines end in; follow-ups that only repeat it do not count."""
    found = [text.strip() for text in lines if _EXCEPTION_LINE.match(text)]
    causes = [text for text in found if not _FOLLOW_UPS.search(text)] or found
    return causes[-1] if causes else None


def _find_java_reason(worker: str, server_log: str) -> str:
    """What TorchServe's thread of this worker says, such as a time-out."""
    lines = server_log.splitlines()
    for line, following in itertools.pairwise(lines):
        if f" {worker} " in line and "Backend worker error" in line:
            return following.rsplit("Exception: ", 1)[-1].strip()
    return "the process ended while loading, without a Python exception (killed? exit in a library?)"


def explain_death(run: RunDir) -> Failure:
    """Why TorchServe itself ended, from what the JVM printed, else from the last error it logged."""
    lines = [line.rstrip() for line in read_log(run.console_log).splitlines()]
    lines = [line for line in lines if line and not _JAVA_FRAME.match(line)]
    causes = [line.strip() for line in lines if _JAVA_CAUSES.search(line)]
    said = [line for line in lines if not _CONSOLE_ROUTINE.match(line)]
    said = said or _SERVER_ERROR.findall(read_log(run.server_log))[-1:]
    cause = (causes[:1] or said[-1:] or ["it said nothing (killed? out of memory?)"])[0]
    log, shown = str(run.console_log), tuple(said[-_LINES_SHOWN:])
    return Failure(cause=f"TorchServe ended: {cause}", log=log, lines=shown)


def read_log(path: Path) -> str:
    """A log's text, as of LOG=text; empty when it is not there (yet)."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "".join(map(_to_text, text.splitlines(keepends=True))) if text.startswith('{"time"') else text


def _to_text(line: str) -> str:
    """Of an entry that log4j wrote for LOG=json (server/launch.py)."""
    try:
        entry = json.loads(line)
        head = f"{entry['time']} [{entry['level']:<5}] {entry['source']} {entry['logger']}"
        return f"{head} - {entry['message']}\n{entry['exception']}"
    except (ValueError, LookupError, TypeError):
        return line


def limit_log(path: Path) -> None:
    """Move what it holds to <name>.1, in place of what was there, once it is large; whoever writes goes on at
    the file's new end. On a full disk the old lines are lost."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LARGEST_LOG_BYTES:
            with contextlib.suppress(OSError):
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


def read_oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Processes the kernel killed for want of memory since boot; 0 when it does not say."""
    words = read_log(vmstat).split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def read_configuration(log: Path) -> dict[str, str]:
    """Name → value as TorchServe prints them, of the first such block; {} when the log does not have them.

    Read it soon after the start: later the log may have been rolled over.
    """
    block = r"^Torchserve version: .*?^Model API enabled: [^\n]*$"
    match = re.search(block, read_log(log), re.MULTILINE | re.DOTALL)
    lines = match[0].splitlines() if match else []
    return {name: value for name, _, value in (line.partition(": ") for line in lines)}
