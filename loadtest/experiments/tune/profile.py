"""Takes the profile of a model: each batch's own seconds in process, in all workers' places at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.systems.system import ROOT

PROFILE_SECONDS = 580


def take_profile(model: str, variant: str, arguments: Sequence[str], store: Path, file: Path) -> Any:
    """By batch size; `arguments` of `python -m config`. What `file` holds already is not taken again."""
    planned = ["--models", model, "--model-store", str(store), *arguments]
    job = _run(["config", *planned, "--timing-job", "--grid"])
    _run(["models", "time", "--job", job.strip(), "--store", str(store), "--output", str(file)])
    entry = json.loads(file.read_text(encoding="utf-8"))["models"][model]["variants"].get(variant, {})
    if "service" not in entry:
        why = entry.get("problem", "nothing of it in the file")
        raise LoadTestError(f"{model} by {variant} could not be timed: {why} ({file})")
    return entry["service"]


def _run(arguments: Sequence[str]) -> str:
    """What it printed; LoadTestError with its last words."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PROFILE_SECONDS, check=False
    )
    if done.returncode:
        raise LoadTestError(f"python -m {arguments[0]} failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout
