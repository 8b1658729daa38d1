"""ResNet-50: throughput against plain TorchServe in each precision, and the time of a single request."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench import Bench
from loadtest.goals import Goal, faster, share_of
from loadtest.payloads import JPEG, Payload, write_list
from loadtest.photos import write_photo
from loadtest.rows.outcome import Outcome
from loadtest.sides import AbSide, LocustSide, ReferenceSide

MODEL = "resnet50"
PHOTO = "photo.jpg"
CONCURRENCY = 64
"""Two workers with two full batches of 16 each: one computes, one waits."""
STOCK_CONCURRENCY = 32
"""One worker with a full batch of 32."""
LATENCY_FACTOR, LATENCY_EXTRA_MS = 1.15, 2.0
TAIL_FACTOR = 1.5


def write_photo_payload(folder: Path) -> Path:
    """A folder with the one photograph that all sides get."""
    folder.mkdir(parents=True)
    write_photo(folder / PHOTO)
    return write_list(folder, [Payload(file=PHOTO, content_type=JPEG, path=f"/predictions/{MODEL}")])


def measure_int8(bench: Bench) -> Outcome:
    """The whole comparison: against plain TorchServe, and against the limit."""
    return _compare(bench, "int8", at_least=12.0, of_the_limit=95.0)


def measure_bf16(bench: Bench) -> Outcome:
    """Against plain TorchServe; the limit is shown."""
    return _compare(bench, "bf16", at_least=6.5)


def measure_fp32(bench: Bench) -> Outcome:
    """Against plain TorchServe; the limit is shown."""
    return _compare(bench, "fp32", at_least=3.3)


def _compare(bench: Bench, precision: str, *, at_least: float, of_the_limit: float | None = None) -> Outcome:
    arguments = ["--precision", precision]
    payloads = write_photo_payload(bench.folder / f"photo-{precision}")
    photo = payloads / PHOTO
    kit = bench.kit(f"kit {precision}", MODEL, arguments)
    stock = bench.stock()
    limit = bench.reference(f"in-process {precision}", MODEL, arguments, payloads)
    turns = bench.compare(
        [
            AbSide(server=stock, body=photo, content_type=JPEG, concurrency=STOCK_CONCURRENCY),
            AbSide(server=kit, body=photo, content_type=JPEG, concurrency=CONCURRENCY),
            ReferenceSide(reference=limit),
        ]
    )
    goals = [faster(turns[kit.name], turns[stock.name], at_least=at_least)]
    if of_the_limit is not None:
        goals.append(share_of(turns[kit.name], turns[limit.name], at_least=of_the_limit))
    return Outcome(turns=turns, goals=goals, judged=kit.name)


def measure_latency(bench: Bench) -> Outcome:
    """One request at a time against batches of one in-process, on the same CPUs and threads."""
    arguments = ["--precision", "int8", "--profile", "latency"]
    payloads = write_photo_payload(bench.folder / "photo-latency")
    kit = bench.kit("kit int8", MODEL, arguments)
    limit = bench.reference("in-process int8", MODEL, arguments, payloads)
    turns = bench.compare(
        [
            LocustSide(server=kit, payloads=payloads, users=1, folder=bench.folder / "locust"),
            ReferenceSide(reference=limit),
        ]
    )
    served = turns[kit.name]
    goals = judge_latency(
        p50=served.latency_ms("50").median,
        p99=served.latency_ms("99").median,
        alone=turns[limit.name].latency_ms("50").median,
    )
    return Outcome(turns=turns, goals=goals, judged=kit.name)


def judge_latency(*, p50: float, p99: float, alone: float) -> list[Goal]:
    """Both targets from the three medians, in milliseconds."""
    how = f"{LATENCY_FACTOR} × {alone:.4g} ms in-process + {LATENCY_EXTRA_MS:g} ms"
    return [
        Goal(
            what="p50 over REST",
            value=p50,
            limit=LATENCY_FACTOR * alone + LATENCY_EXTRA_MS,
            at_least=False,
            unit=" ms",
            how=how,
        ),
        Goal(
            what="p99 over REST",
            value=p99,
            limit=TAIL_FACTOR * p50,
            at_least=False,
            unit=" ms",
            how=f"{TAIL_FACTOR} × p50",
        ),
    ]
