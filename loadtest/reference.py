"""Answers requests with an archive's own handler and no server: what servers are judged by.

Run as a process of its own (`python -m loadtest.reference FOLDER JOB`): the archive brings its code, as it
does for TorchServe, and eager FP32 must not have IPEX loaded beside it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FP32 = "fp32"
OFF = ("channels_last", "trace", "freeze")
"""Every step of a load that changes how the model computes."""


def main(folder: Path, job_file: Path) -> int:
    """The answers as JSON on the last line, in the order of the requests."""
    job = json.loads(job_file.read_text(encoding="utf-8"))
    handler, context = load(folder, job["precision"])
    replies = [handler.handle([{"body": Path(file).read_bytes()}], context)[0] for file in job["files"]]
    print(json.dumps([json.loads(reply) for reply in replies]))
    return 0


def load(folder: Path, precision: str) -> tuple[Any, Any]:
    """The handler with its model, eager when FP32, and a context to call it with."""
    file = folder / "definition.json"
    definition = json.loads(file.read_text(encoding="utf-8"))
    # One request at a time is asked here, so no other batch size needs warming.
    file.write_text(json.dumps({**definition, "batch_sizes": [1]}), encoding="utf-8")
    off = OFF if precision == FP32 else ()
    # IPEX computes wrongly when the number of threads changes in a process: it is set once, before the load.
    options = {"precision": precision, "threads": len(os.sched_getaffinity(0)), "off": off}
    os.environ["CPU_KIT_OPTIONS"] = json.dumps({definition["name"]: options})
    os.environ["TS_IPEX_ENABLE"] = str(precision != FP32).lower()
    context = make_context(definition["name"], folder)
    handler = load_handler(folder, definition["handler"])
    with contextlib.redirect_stdout(sys.stderr):  # IPEX prints; only the answers may stand on standard output
        handler.initialize(context)
    return handler, context


def load_handler(folder: Path, name: str) -> Any:
    """The one class that the handler file defines itself, as TorchServe's loader finds it."""
    sys.path.insert(0, str(folder))
    module = importlib.import_module(name)
    own = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
    return own[0]()


def make_context(name: str, folder: Path) -> Any:
    """What a handler reads of TorchServe's context."""
    return SimpleNamespace(
        model_name=name,
        system_properties={"model_dir": str(folder)},
        metrics=SimpleNamespace(add_counter=lambda *_: None),
        get_request_header=lambda *_: None,
        set_response_status=lambda *_, **__: None,
        set_response_content_type=lambda *_: None,
        set_all_response_status=lambda *_, **__: None,
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
