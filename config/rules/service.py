"""How long a worker takes for a batch: a fixed part and one for each request, and the batch that follows.

Timed on this machine with all workers busy alike (`python -m models time`); without timings, as seen on other
machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from config.definitions import ModelDefinition
from config.rules.limits import TOKEN_MS
from config.timings import Timed

USUAL_TEXT_TOKENS = 32
"""TorchServe counts requests, not tokens. The load tests' log-normal lengths have a mean of 33 (median 24);
what a batch of longer texts may take is bounded by the limit tokens_per_batch."""

SAMPLE_MS = {"fp32": 40.0, "bf16": 19.0, "int8": 10.5}
SAMPLE_FIXED_MS = 3.0
"""ResNet50 on one core with AVX-512 (seen on the faster of two hosts; over REST 14 ms alone, 11.2 of 16)."""

TEXT_FIXED_MS = {"fp32": 11.0, "bf16": 5.0, "int8": 6.0}
"""What one run's calls take (handlers/shared/shapes.py)."""

SERVER_BATCH_MS = 2.0
"""What TorchServe, the door and the kernel take from a worker's time for each batch, whatever its size:
fitted to live servers, 3.4 ms where ResNet50 INT8 takes 23 on a core, 1 ms where it takes 11."""

SERVICES_IN_LIMIT = 3
"""A request meets a batch that is computed, waits as long in the queue, and is in a batch of its own. Of
ResNet50 INT8 batches of 4 (47 ms) kept p99 within 200 ms at 160/s, of 8 (90 ms) at 150, of 16 (180) at 103
(two workers, open loop, measured)."""

NEAR_BEST = 0.97
"""Of the best rate: what more a larger batch brings, it takes from each request's time."""

LEAST_OF_CAPACITY = 0.5
"""Of the best batch's rate; batches that keep the limit and serve less give the machine away. Where none kept
it, BERT INT8 on two cores without AVX-512 served 18/s one by one and 30/s in batches of 8 (p99 at 20/s 1,945
and 836 ms, seen)."""

NEAR_CAPACITY = 0.9
"""Of the best batch's rate, where the limit is given up: a request waits for no more than it must."""

UNDISTURBED = 0.9
"""Share of the time that a process which is timed must have its CPU (models/timings.py)."""

MOST_TEXTS = 32
"""16 mixed texts fill their rows to 97 %, 24 to 98 %, 32 hardly further."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """What a batch takes one worker, in ms."""

    fixed_ms: float
    """Of a batch of any size."""
    each_ms: float
    """For each request in it."""
    source: str
    """Where these are from."""
    tail_ms: float = 0.0
    """What the longest of a hundred requests takes more than the usual one: texts differ, pictures hardly."""

    def take_ms(self, size: int) -> float:
        """A batch of so many requests."""
        return self.fixed_ms + self.each_ms * size

    def rate(self, size: int) -> float:
        """Requests a second of one worker in TorchServe."""
        return 1000 * size / (self.take_ms(size) + SERVER_BATCH_MS)

    def late_ms(self, size: int) -> float:
        """When the longest of a hundred requests is answered, in batches of that size."""
        return SERVICES_IN_LIMIT * self.take_ms(size) + self.tail_ms

    def describe(self) -> str:
        """The two parts, and where they are from."""
        return f"{render_ms(self.fixed_ms)} ms and {render_ms(self.each_ms)} for each request: {self.source}"


def render_ms(ms: float) -> str:
    """A tenth is enough."""
    return f"{round(ms, 1):g}"


def find_service(model: ModelDefinition, variant: str, cores: int, timed: Timed) -> Service:
    """By timings; without, by constants."""
    found = timed.find(model.name, variant)
    if found.get("service"):
        return fit(found["service"])
    lack = f"no timing: {found['problem']}" if found.get("problem") else f"no timings {timed.lack}"
    return _estimate(model, variant.split()[1], cores, lack)


def fit(timed: Mapping[str, Mapping[str, float]]) -> Service:
    """A line through the medians, and how far the smallest batches lie apart."""
    least = timed[min(timed, key=int)]
    tail_ms = 1000 * (least["p99_s"] - least["median_s"])
    return replace(_fit_line(timed, _cite(timed)), tail_ms=tail_ms)


def _fit_line(timed: Mapping[str, Mapping[str, float]], source: str) -> Service:
    """Least squares of the medians' relative errors; neither part is below nothing."""
    sizes = [int(size) for size in timed]
    # fixed × u + each × v = 1 for each point
    u = [1 / (1000 * entry["median_s"]) for entry in timed.values()]
    v = [size * one for size, one in zip(sizes, u, strict=True)]
    uu, uv, vv = _multiply(u, u), _multiply(u, v), _multiply(v, v)
    by_size = Service(fixed_ms=0.0, each_ms=sum(v) / vv, source=source)
    if len(timed) == 1:
        return by_size
    det = uu * vv - uv * uv
    fixed, each = (sum(u) * vv - sum(v) * uv) / det, (sum(v) * uu - sum(u) * uv) / det
    if fixed < 0:
        return by_size
    if each < 0:
        return Service(fixed_ms=sum(u) / uu, each_ms=0.0, source=source)
    return Service(fixed_ms=fixed, each_ms=each, source=source)


def _multiply(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _cite(timed: Mapping[str, Mapping[str, float]]) -> str:
    """Each size's median, and the spread of the batches it is of."""
    sizes = sorted(timed, key=int)
    figures = [
        "{} in {} ms ({}-{})".format(
            size, *(render_ms(1000 * timed[size][name]) for name in ("median_s", "lowest_s", "highest_s"))
        )
        for size in sizes
    ]
    busy = min(entry.get("busy", 1.0) for entry in timed.values())
    doubt = f", DOUBTFUL: others took {1 - busy:.0%} of a CPU meanwhile" if busy < UNDISTURBED else ""
    return f"timed on this machine with all workers busy, {', '.join(figures)}{doubt}"


def _estimate(model: ModelDefinition, precision: str, cores: int, lack: str) -> Service:
    """One core's, divided by those of a worker; `lack` is why there are no timings."""
    texts = bool(model.token_lengths)
    each = TOKEN_MS[precision] * USUAL_TEXT_TOKENS if texts else SAMPLE_MS[precision]
    what = f"BERT-base with texts of {USUAL_TEXT_TOKENS} tokens" if texts else "ResNet50"
    return Service(
        fixed_ms=TEXT_FIXED_MS[precision] if texts else SAMPLE_FIXED_MS,
        each_ms=each / cores,
        source=f"{what} in {precision} as seen on other machines; {lack}",
    )


def list_sizes(model: ModelDefinition) -> Sequence[int]:
    """Batches worth having: those a worker warms, and of texts, which are packed into rows, any number."""
    return range(1, MOST_TEXTS + 1) if model.token_lengths else model.batch_sizes


def choose_size(service: Service, sizes: Sequence[int], limit_ms: int) -> int:
    """The smallest near the best rate of those within the limit; where that is too little, or there is none,
    the smallest near the capacity, which is beyond the limit."""
    fitting = [size for size in sizes if service.late_ms(size) <= limit_ms]
    best, capacity = max(map(service.rate, fitting), default=0.0), max(map(service.rate, sizes))
    if best >= LEAST_OF_CAPACITY * capacity:
        return min(size for size in fitting if service.rate(size) >= NEAR_BEST * best)
    return min(size for size in sizes if service.rate(size) >= NEAR_CAPACITY * capacity)
