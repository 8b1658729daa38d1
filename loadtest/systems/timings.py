"""Takes timings as `make timings` does: batches in process, in all workers' places at once."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.payloads import Payload
from loadtest.systems.system import ROOT

LONGEST_SECONDS = 1200
"""Of one command: each variant takes its load and 10 s, each size of a grid of batches 1 s or more."""


def take_timings(
    models: str,
    arguments: Sequence[str],
    store: Path,
    file: Path,
    *,
    grid: bool = False,
    payloads: Mapping[str, Sequence[Payload]] | None = None,
) -> Mapping[str, Mapping[str, Any]]:
    """Model → variant → its timing, or why there is none; with `grid` of all sizes of a batch, each batch's
    own seconds kept. `models` may name several, with blanks between; `arguments` of `python -m config`. What
    `file` holds already is not taken again. Batches are of a model's `payloads`, or of its archive's own."""
    planned = ["--models", models, "--model-store", str(store), *arguments]
    job = _run(["config", *planned, "--timing-job", *(["--grid"] if grid else [])])
    command = ["models", "time", "--job", job.strip(), "--store", str(store), "--output", str(file)]
    with tempfile.TemporaryDirectory() as folder:
        for name, own in (payloads or {}).items():
            (Path(folder) / name).mkdir()
            for number, payload in enumerate(own):
                (Path(folder) / name / f"{number:04}").write_bytes(payload.body)
        _run([*command, *(["--bodies", folder] if payloads else [])])
    known = json.loads(file.read_text(encoding="utf-8"))["models"]
    return {name: one["variants"] for name, one in known.items()}


def _run(arguments: Sequence[str]) -> str:
    """What it printed; LoadTestError with its last words."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False
    )
    if done.returncode:
        raise LoadTestError(f"python -m {arguments[0]} failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout
