"""One process with an archive's handler, called as TorchServe's worker calls it: at full speed, or once each.

Run as a script with a job file. It stands alone: the `handlers` it imports must be those of the archive.
Protocol: a JSON object a line, orders on the standard input, answers on the standard output.
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
from pathlib import Path
from typing import Any, TextIO


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
        self.headers: dict[str, str] = {}
        """Of every request of the batch."""
        self.rejected: dict[int, tuple[int, str]] = {}
        """Place in the batch → status and phrase."""

    def get_all_request_header(self, _position: int) -> dict[str, str]:
        return self.headers

    def set_response_content_type(self, _position: int, _value: str) -> None:
        pass

    def set_response_header(self, _position: int, _name: str, _value: str) -> None:
        pass

    def set_response_status(self, *, code: int, phrase: str, idx: int) -> None:
        self.rejected[idx] = (code, phrase)


def main(job_file: str) -> None:
    """Load, say so, and run as often as the parent says."""
    answers = take_over_stdout()
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    # In the place of this script's own folder, as in TorchServe's worker.
    sys.path[0] = job["directory"]
    context = Context(job["model"], job["directory"])
    handler = load_handler(job["directory"], context)
    say(answers, describe(handler, context))
    for line in sys.stdin:
        order = json.loads(line)
        if "ask" in order:
            say(answers, [ask(handler, context, *one) for one in order["ask"]])
        else:
            say(answers, run(handler, context, job["batch_size"], order))


def take_over_stdout() -> TextIO:
    """The standard output for answers alone; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def decode(reply: Any) -> str:
    """As a client reads it."""
    return reply.decode() if isinstance(reply, (bytes, bytearray)) else str(reply)


def say(answers: TextIO, answer: Any) -> None:
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
    context.headers = {"describe": "True"}
    answer = json.loads(handler.handle([{}], context)[0])
    context.headers = {}
    return dict(answer)


def ask(handler: Any, context: Context, file: str, content_type: str) -> tuple[int, str]:
    """(status, answer) of one request alone."""
    context.headers = {"Content-Type": content_type}
    context.rejected.clear()
    answer = decode(handler.handle([{"body": bytearray(Path(file).read_bytes())}], context)[0])
    return context.rejected.get(0, (200, ""))[0], answer


def run(handler: Any, context: Context, size: int, order: dict[str, Any]) -> dict[str, Any]:
    """Batch after batch until `end`; the last one is finished. A row a request, as drivers give them.

    Times are of time.monotonic(), which is one clock for all processes of a machine (clock_gettime(2)).
    """
    bodies = [bytearray(Path(file).read_bytes()) for file in order["files"]]
    numbers = itertools.cycle(order["numbers"])
    rows: list[tuple[Any, ...]] = []
    answers: dict[str, int] = {}
    in_model, busy = handler.model_seconds, 0.0
    while (began := time.monotonic()) < order["end"]:
        carried = list(itertools.islice(numbers, size))
        context.rejected.clear()
        replies = handler.handle([{"body": bodies[number]} for number in carried], context)
        ended = time.monotonic()
        busy += ended - began
        for place, (number, reply) in enumerate(zip(carried, replies, strict=True)):
            status, phrase = context.rejected.get(place, (200, ""))
            answer = answers.setdefault(decode(reply), len(answers))
            rows.append((number, began - order["zero"], ended - order["zero"], status, answer, phrase))
    in_model = handler.model_seconds - in_model
    return {"rows": rows, "answers": list(answers), "model_seconds": in_model, "seconds": busy}


if __name__ == "__main__":
    main(sys.argv[1])
