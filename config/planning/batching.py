"""How many requests go into a batch: by how long a batch takes a worker, and by the latency limit.

A batch takes a fixed part and one for each request. Both are fitted to the batch profile of this machine;
without one they are estimates, from other machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from config.archives import ModelDefinition
from config.planning.profile import FEW, FEW_TEXTS, BatchProfile

DEFAULT_SLO_P99_MS = 200
"""Nobody has asked for a limit: a fifth of a second is what people call at once."""

TOKEN_MS = {"fp32": 1.7, "bf16": 0.87, "int8": 0.48}
"""Of one core with AVX-512 for a token of BERT-base (seen on the slower of two hosts)."""

USUAL_TEXT_TOKENS = 32
"""TorchServe counts requests, not tokens. The load tests' log-normal lengths have a mean of 33 (median 24);
what a batch of longer texts may take is bounded by the limit tokens_per_batch."""

SAMPLE_MS = {"fp32": 40.0, "bf16": 19.0, "int8": 10.5}
SAMPLE_FIXED_MS = 3.0
"""ResNet50 on one core with AVX-512 (seen on the faster of two hosts; over REST 14 ms alone, 11.2 of 16)."""

TEXT_FIXED_MS = {"fp32": 11.0, "bf16": 5.0, "int8": 6.0}
"""What one run's calls take (handlers/shared/shapes.py)."""

SERVER_BATCH_MS = 2.0
"""What TorchServe, HAProxy and the kernel take from a worker's time for each batch, whatever its size: fitted
to live servers, 3.4 ms where ResNet50 INT8 takes 23 on a core, 1 ms where it takes 11."""

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
    """What the longest of a hundred requests takes more than the usual one: texts differ, images hardly."""

    def take_ms(self, size: int) -> float:
        """A batch of so many requests."""
        return self.fixed_ms + self.each_ms * size

    def rate(self, size: int) -> float:
        """Requests a second of one worker in TorchServe."""
        return 1000 * size / (self.take_ms(size) + SERVER_BATCH_MS)

    def p99_ms(self, size: int) -> float:
        """When the longest of a hundred requests has its response, in batches of that size."""
        return SERVICES_IN_LIMIT * self.take_ms(size) + self.tail_ms


def find_service(model: ModelDefinition, variant: str, cores: int, profile: BatchProfile) -> Service:
    """By the batch profile; without, by constants: one core's, divided by those of a worker."""
    found = profile.find(model.name, variant)
    if found.get("service"):
        return fit(found["service"])
    lack = f"not timed: {found['problem']}" if found.get("problem") else profile.source
    precision, texts = variant.split()[1], bool(model.token_lengths)
    each = TOKEN_MS[precision] * USUAL_TEXT_TOKENS if texts else SAMPLE_MS[precision]
    return Service(
        fixed_ms=TEXT_FIXED_MS[precision] if texts else SAMPLE_FIXED_MS,
        each_ms=each / cores,
        source=f"{'BERT-base' if texts else 'ResNet50'} as seen on other machines; {lack}",
    )


def fit(timed: Mapping[str, Mapping[str, float]]) -> Service:
    """A line through the medians, by least squares of their relative errors, with neither part below nothing;
    and how far the smallest batches lie apart."""
    # fixed × u + each × v = 1 for each point
    u = [1 / (1000 * entry["median_s"]) for entry in timed.values()]
    v = [int(size) * one for size, one in zip(timed, u, strict=True)]
    uu, uv, vv = (
        sum(a * b for a, b in zip(one, other, strict=True)) for one, other in ((u, u), (u, v), (v, v))
    )
    fixed, each = 0.0, sum(v) / vv
    if len(timed) > 1:
        det = uu * vv - uv * uv
        fixed, each = (sum(u) * vv - sum(v) * uv) / det, (sum(v) * uu - sum(u) * uv) / det
    if fixed < 0:
        fixed, each = 0.0, sum(v) / vv
    elif each < 0:
        fixed, each = sum(u) / uu, 0.0
    least = timed[min(timed, key=int)]
    tail_ms = 1000 * (least["p99_s"] - least["median_s"])
    return Service(fixed_ms=fixed, each_ms=each, tail_ms=tail_ms, source=_cite(timed))


def _cite(timed: Mapping[str, Mapping[str, float]]) -> str:
    """Each size's median, and the spread of the batches it is of."""
    figures = [
        f"{size} in {1000 * one['median_s']:.1f} ms "
        f"({1000 * one['lowest_s']:.1f}-{1000 * one['highest_s']:.1f})"
        for size, one in sorted(timed.items(), key=lambda item: int(item[0]))
    ]
    busy = min(entry.get("busy", 1.0) for entry in timed.values())
    doubt = f", DOUBTFUL: others took {1 - busy:.0%} of a CPU meanwhile" if busy < UNDISTURBED else ""
    return f"timed on this machine, all workers busy: {', '.join(figures)}{doubt}"


def list_sizes(model: ModelDefinition) -> Sequence[int]:
    """Batches worth having: those a worker warms, and of texts, which are packed into rows, any number."""
    return range(1, MOST_TEXTS + 1) if model.token_lengths else model.batch_sizes


def list_timed(model: ModelDefinition, mode: str) -> tuple[int, ...]:
    """Of these, the ones that a batch profile is made of."""
    least, most = min(list_sizes(model)), max(list_sizes(model))
    if mode == "latency":
        return (least,)
    few = FEW_TEXTS if model.token_lengths else (least, *FEW, most)
    return tuple(sorted({size for size in few if least <= size <= most}))


def choose_batch(service: Service, sizes: Sequence[int], mode: str, limit_ms: int) -> tuple[int, str]:
    """The smallest near the best rate of those within the limit; where that is too little, or there is none,
    the smallest near the capacity, which is beyond the limit. And why."""
    if mode == "latency":
        ms = service.take_ms(min(sizes))
        return min(sizes), f"MODE=latency: a request waits for no other, {ms:.1f} ms; {service.source}"
    fitting = [size for size in sizes if service.p99_ms(size) <= limit_ms]
    best, capacity = max(map(service.rate, fitting), default=0.0), max(map(service.rate, sizes))
    keeps = best >= LEAST_OF_CAPACITY * capacity
    among, near, rate = (fitting, NEAR_BEST, best) if keeps else (sizes, NEAR_CAPACITY, capacity)
    size = min(size for size in among if service.rate(size) >= near * rate)
    took = (
        f"{SERVICES_IN_LIMIT} × {service.take_ms(size):.1f} ms (the batch before it, its own, and as long to "
        "wait)" + f" + {service.tail_ms:.1f} for the longest" * (service.tail_ms > 0)
    )
    share = (
        f"the smallest within {1 - near:.0%} of the {'best rate' if keeps else 'capacity'} "
        f"({service.rate(size):.3g}/s of a worker)"
    )
    if keeps:
        return size, f"{share} of those that keep {took} ≤ {limit_ms} ms; {service.source}"
    return size, f"{share}; SLO_P99_MS={limit_ms} CANNOT BE KEPT: {took}; {service.source}"
