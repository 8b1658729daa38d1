"""Times batches of one archive in one precision, from bodies to bodies, by the model as a worker loads it.

Run as a process of its own (`python -m models.timing STAGING`) with a worker's environment, because
allocator, threads and precision are settled when a process starts. models/slots.py does so, once in each
worker's place, and says when to compute: a core is slower while its neighbours fetch from the same memory.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from handlers.request import Request
from handlers.shared.errors import LoadError
from handlers.shared.options import read_options
from handlers.task import Task
from models.errors import BuildError
from models.handlers import check_replies, load_handler
from models.slots import READY

TEXTS = 240
MEDIAN_TOKENS, SIGMA = 23, 0.8
"""Log-normal lengths as in the load tests: a mean of 32 tokens."""
SEED = 7
"""The same texts in the same order each time."""


class Batches:
    """Answers batches of one model's requests."""

    def __init__(self, staging: Path) -> None:
        self._handler = load_handler(staging)
        self._handler.load(read_options(self._handler.definition, os.environ))
        bodies = write_bodies(self._handler, self._handler.example)
        self._requests = itertools.cycle([Request(content=body) for body in bodies])

    def answer(self, size: int) -> None:
        """BuildError where one is rejected."""
        check_replies(self._handler.answer(list(itertools.islice(self._requests, size))), "what is timed")


def write_bodies(task: Task, example: bytes) -> list[bytes]:
    """The example; of texts one of each length that requests have, in random order."""
    plain = task.definition.example.content_type.startswith("text/")
    if not plain or not _measure(task, example):
        return [example]
    return [_write_text(task, example.decode().split(), tokens) for tokens in draw_lengths(TEXTS)]


def draw_lengths(count: int) -> list[int]:
    """The middle of each of `count` equally likely parts."""
    normal = statistics.NormalDist()
    shares = [(part + 0.5) / count for part in range(count)]
    lengths = [round(MEDIAN_TOKENS * math.exp(SIGMA * normal.inv_cdf(share))) for share in shares]
    random.Random(SEED).shuffle(lengths)
    return lengths


def _write_text(task: Task, words: Sequence[str], tokens: int) -> bytes:
    """The example's words, again and again, until it is as long, or what is more is cut off."""
    text, length = "", 0
    for word in itertools.cycle(words):
        text, before = f"{text} {word}".strip(), length
        length = _measure(task, text.encode())
        if length >= tokens or length == before:
            return text.encode()
    raise AssertionError("a cycle of words has no end")


def _measure(task: Task, body: bytes) -> int:
    return task.measure(task.decode(Request(content=body)))


def time_batches(
    answer: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each, one at least."""
    begun = clock()
    taken: list[float] = []
    while clock() - begun < seconds or not taken:
        started = clock()
        answer()
        taken.append(clock() - started)
    return taken


def serve(staging: Path, asked: Iterator[str], out: TextIO) -> None:
    """Say when the model is loaded, then time batches as each line says, until there is none."""
    batches, met = Batches(staging), set[str]()
    print(READY, file=out, flush=True)
    for line in asked:
        size, seconds = line.split()
        if size not in met:  # decoder, tokenizer and allocator meet it: not counted
            batches.answer(int(size))
            met.add(size)
        # The thread that leads the others: it computes, or spins where it waits for them.
        clock, cpu = time.perf_counter(), time.thread_time()
        taken = time_batches(partial(batches.answer, int(size)), float(seconds))
        busy = (time.thread_time() - cpu) / (time.perf_counter() - clock)
        print(json.dumps({"seconds": taken, "busy": min(1.0, busy)}), file=out, flush=True)


def main() -> int:
    """1 with one clear line when the model cannot be timed."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    # Backends print to standard output; only answers may stand there.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(Path(sys.argv[1]), iter(sys.stdin), out)
    except (LoadError, BuildError, RuntimeError, OSError) as error:
        print(f"error: {getattr(error, 'cause', error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
