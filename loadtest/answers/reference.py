"""Answers requests with an archive's own handler and no server: what servers are judged by.

Run as a process of its own (`python -m loadtest.answers.reference FOLDER JOB`): the archive brings its code,
as it does for TorchServe, and eager FP32 must not have an engine loaded beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from loadtest.systems.inprocess_worker import Context, load_handler

FP32 = "fp32"
REFERENCE = "eager fp32"
"""Spelt out: the checkout's handlers must not be imported here, where the archive brings its own."""
OFF = ("channels_last", "trace", "freeze")
"""Every step of a load that changes how the model computes."""


def main(folder: Path, job_file: Path) -> int:
    """The answers as JSON on the last line, in the order of the requests."""
    job = json.loads(job_file.read_text(encoding="utf-8"))
    handler, context = load(folder, job["variant"])
    replies = [handler.handle([{"body": Path(file).read_bytes()}], context)[0] for file in job["files"]]
    print(json.dumps([json.loads(reply) for reply in replies]))
    return 0


def load(folder: Path, variant: str) -> tuple[Any, Any]:
    """The handler with its model, eager where it is the reference, and a context to call it with."""
    file = folder / "definition.json"
    definition = json.loads(file.read_text(encoding="utf-8"))
    # One request at a time is asked here, so no other batch size needs warming.
    file.write_text(json.dumps({**definition, "batch_sizes": [1]}), encoding="utf-8")
    engine, precision = variant.split()
    off = OFF if variant == REFERENCE else ()
    # An engine may compute wrongly when the number of threads changes: it is set once, before the load.
    options = {"engine": engine, "precision": precision, "threads": len(os.sched_getaffinity(0)), "off": off}
    os.environ["CPU_KIT_OPTIONS"] = json.dumps({definition["name"]: options})
    context = Context(definition["name"], str(folder))
    sys.path.insert(0, str(folder))
    # Engines print; only the answers may stand on standard output.
    with contextlib.redirect_stdout(sys.stderr):
        handler = load_handler(str(folder), context)
    return handler, context


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
