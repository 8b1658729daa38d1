"""Measures what one worker takes: `python -m models.memory STAGING` loads a variant as a worker does.

A process of its own, whose peak (VmHWM) is nobody else's. What the worst requests add is not seen with the
example alone: the limits of the handler say more, and the larger of the two is kept.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handlers.definition import Memory
from handlers.request import Request
from handlers.shared.errors import LoadError
from handlers.shared.options import OPTIONS_VARIABLE, read_options
from models.errors import BuildError
from models.handlers import check_replies, load_handler

ROOT = Path(__file__).parent.parent
SPARE = 1.1
"""Other allocators and more threads: 7 % were seen between glibc's and jemalloc."""
STEP_MIB = 50
"""Numbers are rounded up to such steps: a build elsewhere must not change the archive by a page."""
JSON_MIB = 160
"""What a batch with one body of 16 MiB adds as JSON (128), and the tokens of its texts (23), measured."""
BODY_MIB = 20
"""A copy of the largest body, beside an image that is decoded (limit decode_mib): 183 for 179 measured."""
THREADS = 2


def measure_memory(name: str, staging: Path, variant: str, *, batch: int) -> Memory:
    """Of a worker that computes batches of `batch` requests; BuildError where the variant does not load."""
    backend, precision = variant.split()
    options = {"backend": backend, "precision": precision, "threads": THREADS, "batch": batch}
    environment = {OPTIONS_VARIABLE: json.dumps({name: options})}
    failing = f"{variant} cannot be loaded as a worker loads it"
    return Memory(**run_module("models.memory", str(staging), environment=environment, failing=failing))


def run_module(module: str, *arguments: str, environment: Mapping[str, str], failing: str) -> Any:
    """The JSON on the last line of another process; BuildError with its last `error: …`."""
    command = [sys.executable, "-m", module, *arguments]
    # Else a backend may start a pool of compilers: 600 MiB for nothing.
    alone = {**os.environ, "TORCH_WARM_POOL": "0", **environment}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        cause = errors[-1].removeprefix("error: ") if errors else done.stderr[-1500:]
        raise BuildError(f"{failing}: {cause}")
    return json.loads(done.stdout.splitlines()[-1])


def _measure(staging: Path) -> Memory:
    handler = load_handler(staging)
    options = read_options(handler.definition, os.environ)
    handler.load(options)
    ready = read_status("VmHWM")
    requests = [Request(content=handler.example)] * (options.batch or 1)
    check_replies(handler.answer(requests), "the example")
    decoded = handler.limits.get("decode_mib")
    floor = JSON_MIB if decoded is None else decoded + BODY_MIB
    return Memory(
        worker_mib=_round(ready * SPARE), request_mib=max(floor, _round(read_status("VmHWM") - ready))
    )


def read_status(field: str, file: Path = Path("/proc/self/status")) -> float:
    """MiB of one line, as VmRSS."""
    found = re.search(rf"^{field}:\s+(\d+) kB", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _round(mib: float) -> int:
    return -(-int(mib + 1) // STEP_MIB) * STEP_MIB


def main() -> int:
    """The figures as JSON on the last line; 1 with one clear line on failure."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        found = _measure(Path(sys.argv[1]))
    except (LoadError, BuildError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(found.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
