"""Times one archive in one precision: full batches of its canary, through the model as a worker loads it.

Run as a process of its own (`python -m models.timing STAGING BATCH_SIZE`) with a worker's environment,
because allocator, threads and precision are settled when a process starts; models/timings.py does so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from handlers.shared.definition import read_definition
from handlers.shared.errors import LoadError
from handlers.shared.options import read_options
from handlers.shared.runtime import load_runtime
from models.classifiers import load_classifier
from models.errors import BuildError

WARM_UP_BATCHES = 2
"""After the load's own warm-up: decoder, tokenizer and allocator meet a full batch."""
MEASURED_SECONDS = 2.5
MIN_BATCHES = 5


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a number of equal batches took, in seconds of CPU."""

    batches: int
    lowest_s: float
    median_s: float
    highest_s: float


def time_archive(staging: Path, batch_size: int) -> Timing:
    """Load with the options of this process's environment, and answer batches from bodies to bodies."""
    definition = read_definition(staging)
    runtime = load_runtime(load_classifier(staging), read_options(definition, os.environ))
    bodies = [(staging / definition.canary["file"]).read_bytes()] * batch_size
    refused = [reply for reply in runtime.predict(bodies) if reply.status != 200]
    if refused:
        raise BuildError(f"the canary is refused: {refused[0].body.decode()}")
    return time_batches(lambda: runtime.predict(bodies))


def time_batches(answer: Callable[[], object], clock: Callable[[], float] = time.process_time) -> Timing:
    """CPU time, not the clock's: other programs on the core must not decide which precision looks fast."""
    for _ in range(WARM_UP_BATCHES):
        answer()
    seconds: list[float] = []
    while len(seconds) < MIN_BATCHES or sum(seconds) < MEASURED_SECONDS:
        started = clock()
        answer()
        seconds.append(clock() - started)
    return Timing(
        batches=len(seconds),
        lowest_s=min(seconds),
        median_s=statistics.median(seconds),
        highest_s=max(seconds),
    )


def main() -> int:
    """Print the timing as JSON on the last line; 1 with one clear line when the model cannot be timed."""
    staging, batch_size = Path(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        # IPEX prints to standard output; only the timing may stand there.
        with contextlib.redirect_stdout(sys.stderr):
            timing = time_archive(staging, batch_size)
    except (LoadError, BuildError, RuntimeError, OSError) as error:
        print(f"error: {getattr(error, 'cause', error)}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(timing)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
