"""One process of the in-process reference: an archive's handler, called as TorchServe's worker calls it.

Run as a script with a job file. It stands alone: the `handlers` it imports must be those of the archive.
Protocol: `measure SECONDS` a line on the standard input, a JSON object a line on the standard output.
What is imitated: ts/service.py (one dictionary a request), ts/protocol/otf_message_handler.py (with
decode_input_request=false each body is a bytearray), ts/model_loader.py (the handler file's own class).
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

SHOWN_ERROR = 300


class Metrics:
    """Takes what TorchServe's metrics cache takes, and drops it."""

    def add_counter(self, name: str, value: float) -> None:
        pass


class Context:
    """The part of TorchServe's Context that handlers use; it remembers answers that are not 200."""

    def __init__(self, model: str, directory: str) -> None:
        self.model_name = model
        self.system_properties = {"model_dir": directory, "gpu_id": None}
        self.metrics = Metrics()
        self.describe = False
        self.refused: list[str] = []

    def get_all_request_header(self, _position: int) -> dict[str, str]:
        return {"describe": "True"} if self.describe else {}

    def get_request_id(self, position: int) -> str:
        return str(position)

    def set_response_content_type(self, _position: int, _value: str) -> None:
        pass

    def set_response_status(self, *, code: int, phrase: str, idx: int) -> None:
        self.refused.append(f"{code} {phrase}")


class ModelClock:
    """Adds up the time inside the model, apart from decoding, packing and answering."""

    def __init__(self, handler: Any) -> None:
        self.seconds = 0.0
        state = handler.runtime._state
        self._run: Callable[..., Any] = state.run
        state.run = self._timed

    def _timed(self, *inputs: Any) -> Any:
        began = time.perf_counter()
        result = self._run(*inputs)
        self.seconds += time.perf_counter() - began
        return result


def main(job_file: str) -> None:
    """Load, say so, and measure as often as asked."""
    answers = take_over_stdout()
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    # In the place of this script's own folder, as in TorchServe's worker.
    sys.path[0] = job["directory"]
    context = Context(job["model"], job["directory"])
    handler = load_handler(job["directory"], context)
    clock, batches = ModelClock(handler), repeat_batches(job)
    say(answers, describe(handler, context))
    for line in sys.stdin:
        say(answers, measure(handler, context, clock, batches, float(line.split()[1])))


def take_over_stdout() -> TextIO:
    """The standard output for answers alone; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def say(answers: TextIO, answer: dict[str, Any]) -> None:
    """One answer."""
    print(json.dumps(answer), file=answers, flush=True)


def load_handler(directory: str, context: Context) -> Any:
    """The initialised instance of the one class that the archive's handler file defines itself."""
    manifest = json.loads((Path(directory) / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
    module = importlib.import_module(manifest["model"]["handler"].removesuffix(".py"))
    own = [thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__]
    (kind,) = (thing for thing in own if isinstance(thing, type))
    handler = kind()
    handler.initialize(context)
    return handler


def describe(handler: Any, context: Context) -> dict[str, Any]:
    """The handler's own account of what is in effect in this process."""
    context.describe = True
    answer = json.loads(handler.handle([{}], context)[0])
    context.describe = False
    return dict(answer)


def repeat_batches(job: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The requests in the job's order, batch by batch, again and again."""
    bodies = [bytearray(Path(one["file"]).read_bytes()) for one in job["payloads"]]
    requests = ({"body": bodies[number]} for number in itertools.cycle(job["order"]))
    while True:
        yield list(itertools.islice(requests, job["batch_size"]))


def measure(
    handler: Any, context: Context, clock: ModelClock, batches: Iterator[list[dict[str, Any]]], seconds: float
) -> dict[str, Any]:
    """Batch after batch for so long; the last one is finished and counted with its time."""
    times, requests, in_model, cpu = [], 0, clock.seconds, time.process_time()
    began = now = time.perf_counter()
    while now - began < seconds:
        batch = next(batches)
        handler.handle(batch, context)
        done = time.perf_counter()
        times.append(done - now)
        requests += len(batch)
        now = done
    if context.refused:
        return {"error": f"{len(context.refused)} answers were not 200: {context.refused[0][:SHOWN_ERROR]}"}
    return {
        "requests": requests,
        "seconds": now - began,
        "batch_seconds": times,
        "model_seconds": clock.seconds - in_model,
        "cpu_seconds": time.process_time() - cpu,
    }


if __name__ == "__main__":
    main(sys.argv[1])
