"""Loads an unpacked archive as TorchServe's worker does, in a process of its own, and asks it.

`python -m tests.models.worker DIRECTORY` reads batches of request bodies from standard input. A process of
its own, because IPEX computes wrongly when the number of threads changes in a process.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client reads of one input's answer."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a worker was, and what it answered."""

    describe: dict[str, Any]
    answers: list[Answer]
    """To each input, in order; every request had status 200."""
    smoke: Any
    """The reply to the archive's own sample request."""
    code: str
    """Where the worker's handlers package was imported from."""


class WorkerError(Exception):
    """The worker could not load the model; the text is what TorchServe logs."""


def ask_worker(
    directory: Path,
    *,
    precision: str,
    requests: Sequence[bytes],
    rows: int,
    off: Sequence[str] = (),
    backend: str = "ipex",
) -> Worker:
    """Load `directory` with one thread, and send it batches of `rows` requests and the smoke."""
    smoke = _read_definition(directory)["example"]["file"]
    encoded = [base64.b64encode(body).decode() for body in (*requests, (directory / smoke).read_bytes())]
    last = len(requests)
    batches = [encoded[start : min(start + rows, last)] for start in range(0, last, rows)]
    options = {"backend": backend, "precision": precision, "threads": 1, "off": list(off)}
    result = _run(directory, options, [*batches, encoded[last:]])
    if "failure" in result:
        raise WorkerError(result["failure"])
    *replies, smoke_reply = result["replies"]
    answers = [answer for reply in replies for answer in _read(reply)]
    return Worker(describe=result["describe"], answers=answers, smoke=smoke_reply, code=result["code"])


def ask_replies(
    directory: Path, *, precision: str, requests: Sequence[bytes], rows: int, backend: str = "ipex"
) -> list[Any]:
    """The JSON of each request's answer, in batches of `rows`, of a worker with one thread."""
    encoded = [base64.b64encode(body).decode() for body in requests]
    batches = [encoded[start : start + rows] for start in range(0, len(encoded), rows)]
    options = {"backend": backend, "precision": precision, "threads": 1, "off": []}
    result = _run(directory, options, batches)
    if "failure" in result:
        raise WorkerError(result["failure"])
    return list(result["replies"])


def _run(directory: Path, options: dict[str, Any], batches: list[list[str]]) -> dict[str, Any]:
    name = _read_definition(directory)["name"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CPU_KIT_OPTIONS": json.dumps({name: options}),
    }
    command = [sys.executable, "-m", "tests.models.worker", str(directory)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, input=json.dumps(batches), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _read_definition(directory: Path) -> dict[str, Any]:
    """By itself: the handlers package must be the archive's own here."""
    return dict(json.loads((directory / "definition.json").read_text(encoding="utf-8")))


def _read(reply: Any) -> list[Answer]:
    """The answers in one reply: a text's answer, a list of such, or an image's list of classes."""
    if isinstance(reply, dict):
        return [Answer(label=reply["label"], probabilities=reply["probabilities"])]
    if "probabilities" in reply[0]:
        return [answer for one in reply for answer in _read(one)]
    probabilities = {one["label"]: one["probability"] for one in reply}
    return [Answer(label=reply[0]["label"], probabilities=probabilities)]


def _serve(directory: Path, batches: list[list[str]]) -> dict[str, Any]:
    # As TorchServe does: the archive's own code, its handler by bare file name.
    sys.path.insert(0, str(directory))
    manifest = json.loads((directory / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
    module = importlib.import_module(Path(manifest["model"]["handler"]).stem)
    (kind,) = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
    from tests.handlers.context import FakeContext

    handler = kind()
    try:
        handler.initialize(FakeContext(directory))
    except RuntimeError as error:
        return {"failure": str(error)}
    replies = []
    for batch in batches:
        context = FakeContext(directory)
        rows = [{"body": bytearray(base64.b64decode(body))} for body in batch]
        replies += [json.loads(reply) for reply in handler.handle(rows, context)]
        assert context.statuses == {}, replies[-len(rows) :]
    (describe,) = handler.handle([{}], FakeContext(directory, describe=True))
    return {
        "describe": json.loads(describe),
        "replies": replies,
        "code": sys.modules["handlers"].__file__,
    }


if __name__ == "__main__":
    # IPEX prints to standard output; only the result may stand there.
    with contextlib.redirect_stdout(sys.stderr):
        result = _serve(Path(sys.argv[1]), json.load(sys.stdin))
    print(json.dumps(result))
