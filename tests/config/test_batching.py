"""Batch, delay and queue by what a batch takes and by the limit; the line that timings are made into."""

from __future__ import annotations

import pytest

from config.rules.batching import MIN_QUEUE
from config.rules.service import MOST_TEXTS, Service, choose_size, fit, list_sizes
from tests.config.planning import make_model, plan_machine
from tests.config.test_variants import MODELS, make_job, time_job

WARMED = (1, 2, 4, 8, 16)
ANY = range(1, 33)


def make_service(fixed_ms: float, each_ms: float, tail_ms: float = 0.0) -> Service:
    return Service(fixed_ms=fixed_ms, each_ms=each_ms, source="a test", tail_ms=tail_ms)


def time_line(fixed_ms: float, each_ms: float, sizes=(1, 4, 16), tail_s=0.0) -> dict[str, dict[str, float]]:
    """As a file of timings has it."""
    return {
        str(size): {"lowest_s": s / 2, "median_s": s, "p99_s": s + tail_s, "highest_s": 2 * s, "busy": 1.0}
        for size in sizes
        for s in [(fixed_ms + each_ms * size) / 1000]
    }


@pytest.mark.parametrize(
    ("fixed_ms", "each_ms", "limit_ms", "sizes", "size"),
    [
        # ResNet50 INT8 on a fast core: 4 is near 8's rate, and 8 is beyond 200 ms
        (3, 10.5, 200, WARMED, 4),
        (3, 10.5, 100, WARMED, 2),
        (3, 10.5, 500, WARMED, 8),
        (3, 10.5, 2000, WARMED, 8),
        # nothing is fixed but what TorchServe takes for each batch
        (0, 10, 500, WARMED, 8),
        (0, 100, 2000, WARMED, 1),
        # all is fixed: as many as there are
        (10, 0, 200, WARMED, 16),
        (10, 0, 200, ANY, 32),
        (50, 1, 200, ANY, 16),
        # BERT INT8
        (6, 7.7, 200, ANY, 6),
        (6, 7.7, 100, ANY, 3),
        (6, 7.7, 500, ANY, 13),
        # nothing fits
        (3, 80, 200, WARMED, 1),
        (3, 80, 200, (4, 8), 4),
        # just within, just beyond
        (0, 50, 150, WARMED, 1),
        (30, 10, 150, WARMED, 2),
        (30, 10, 149, WARMED, 1),
    ],
)
def test_size(fixed_ms, each_ms, limit_ms, sizes, size):
    assert choose_size(make_service(fixed_ms, each_ms), sizes, limit_ms) == size


@pytest.mark.parametrize(
    ("limit_ms", "size", "without"), [(130, 1, 2), (160, 1, 3), (200, 2, 3), (250, 3, 4), (1000, 9, 9)]
)
def test_what_the_longest_takes_more_leaves_less_of_the_limit(limit_ms, size, without):
    """BERT INT8 on a core of Zen 4; simulated, batches of 2 serve 0.77 of those of 1 within 130 ms."""
    assert choose_size(make_service(5.2, 15.7, tail_ms=76), ANY, limit_ms) == size
    assert choose_size(make_service(5.2, 15.7), ANY, limit_ms) == without


def test_the_tail_is_that_of_the_smallest_batch():
    timed = time_line(10, 10, tail_s=0.05)
    timed["16"]["p99_s"] = 1.0
    assert fit(timed).tail_ms == pytest.approx(50)


@pytest.mark.parametrize(("fixed_ms", "each_ms"), [(3, 10.5), (0, 20), (50, 0), (7, 0.1)])
@pytest.mark.parametrize("sizes", [(1, 4, 16), (1, 8, 24), (1, 16)])
def test_a_line_is_found_again(fixed_ms, each_ms, sizes):
    service = fit(time_line(fixed_ms, each_ms, sizes))
    assert (service.fixed_ms, service.each_ms) == (
        pytest.approx(fixed_ms, abs=1e-6),
        pytest.approx(each_ms, abs=1e-6),
    )


def test_one_point_is_a_line_through_nothing():
    service = fit(time_line(3, 9, (4,)))
    assert (service.fixed_ms, service.each_ms) == (0, pytest.approx(39 / 4))


@pytest.mark.parametrize(
    ("medians", "fixed"), [({"1": 0.01, "4": 0.05}, True), ({"1": 0.02, "4": 0.01}, False)]
)
def test_no_part_is_below_nothing(medians, fixed):
    timed = {
        size: {"lowest_s": s, "median_s": s, "p99_s": s, "highest_s": s, "busy": 1.0}
        for size, s in medians.items()
    }
    service = fit(timed)
    assert (service.fixed_ms == 0, service.each_ms == 0) == (fixed, not fixed)
    assert service.fixed_ms + service.each_ms > 0


def test_a_point_that_is_off_counts_by_its_share():
    """A large batch that took a tenth too long does not hide what a small one takes."""
    timed = time_line(10, 10)
    timed["16"]["median_s"] *= 1.1
    assert fit(timed).take_ms(1) == pytest.approx(20, rel=0.02)


def test_timings_that_others_disturbed_are_said():
    timed = time_line(10, 10)
    assert "DOUBTFUL" not in fit(timed).source
    timed["4"]["busy"] = 0.7
    assert fit(timed).source.endswith(", DOUBTFUL: others took 30% of a CPU meanwhile")


def test_sizes_are_those_that_are_warmed_and_of_texts_any():
    assert list_sizes(make_model("m", batch_sizes=(2, 8))) == (2, 8)
    assert list(list_sizes(make_model("bert", token_lengths=(128,)))) == list(range(1, MOST_TEXTS + 1))


def plan_resnet50(speed=None, machine="two-cores", tail_s=0.0, **changes):
    """Planned by timings of a model that does so many a second, whatever the batch."""
    asked = {"precision": "bf16", "topology": "live", **changes}
    models = MODELS[1:]
    if not speed:
        return plan_machine(machine, models, **asked).models["resnet50"]
    timings = time_job(make_job(machine, models, **asked), tail_s=tail_s, resnet50={"bf16": speed})
    return plan_machine(machine, models, timings, **asked).models["resnet50"]


@pytest.mark.parametrize(
    ("profile", "precision", "sizes", "batch"),
    [
        ("throughput", "fp32", WARMED, 1),
        ("throughput", "bf16", WARMED, 2),
        ("throughput", "bf16", (32, 64), 32),
        ("latency", "bf16", WARMED, 1),
        ("latency", "fp32", (4, 8), 4),
    ],
)
def test_without_timings_constants_follow_the_same_rule(profile, precision, sizes, batch):
    models = (make_model("m", batch_sizes=sizes),)
    planned = plan_machine("two-cores", models=models, profile=profile, precision=precision).models["m"]
    assert (planned.batch_size.value, planned.max_batch_delay_ms.value) == (batch, 1)
    assert planned.batch_size.reason.endswith(
        "as seen on other machines; no timings of this machine: got none (--timings was not given)"
    )


def test_more_cores_of_a_worker_take_less_time():
    sizes = [
        plan_resnet50(topology="recorded", workers=1, cores_per_worker=cores).batch_size.value
        for cores in (1, 2)
    ]
    assert sizes == [2, 4]


def test_the_reason_cites_timings_limit_and_rate():
    planned = plan_resnet50(40)
    assert planned.batch_size.value == 2
    assert planned.batch_size.reason == (
        "the smallest within 3% of the best rate, 76.9/s of 2 workers with 2 ms of TorchServe's for each "
        "batch, of those with 3 × 50 ms (one computed before it, its own, and as long to wait) ≤ 200 ms, "
        "SLO_P99_MS; 0 ms and 25 for each request: timed on this machine with all workers busy, "
        "1 in 25 ms (22.5-30), 4 in 100 ms (90-120), 16 in 400 ms (360-480)"
    )


@pytest.mark.parametrize(
    ("speed", "limit_ms", "said"),
    [
        (14, None, "the smallest: 3 × 71.4 ms (one computed before it, its own, and as long to wait) is "
         "beyond 200 ms, SLO_P99_MS; 0 ms"),
        (14, 300, "the smallest within 3%"),
        (9, None, "beyond 200 ms, SLO_P99_MS, WHICH CANNOT BE KEPT: who meets one batch waits 222.2 ms; "),
        (9, 500, "the smallest within 3%"),
    ],
)  # fmt: skip
def test_a_limit_that_is_tight_or_cannot_be_kept_is_said(speed, limit_ms, said):
    planned = plan_resnet50(speed, slo_p99_ms=limit_ms)
    assert planned.batch_size.value == 1
    assert said in planned.batch_size.reason


def test_the_longest_of_a_hundred_is_in_the_reason():
    planned = plan_resnet50(40, tail_s=0.06)
    assert planned.batch_size.value == 1
    longest = "and as long to wait) + 60 (what the longest of a hundred takes more) ≤ 200 ms"
    assert longest in planned.batch_size.reason
    late = plan_resnet50(40, tail_s=0.18).batch_size.reason
    assert "WHICH CANNOT BE KEPT: the longest of a hundred takes 205 ms alone; " in late


@pytest.mark.parametrize(
    ("machine", "speed", "limit_ms", "queue"),
    [
        ("two-cores", 90, 200, MIN_QUEUE),  # 2 × 88/s × 0.2 s × 2 = 71
        ("two-cores", 90, 1000, 353),  # of 90/s batches of 4 are 88/s with what TorchServe takes
        ("single-socket", 90, 200, 276),
        ("single-socket", 900, 20, 199),
    ],
)
def test_queue_by_rate_and_limit(machine, speed, limit_ms, queue):
    planned = plan_resnet50(speed, machine=machine, slo_p99_ms=limit_ms)
    assert planned.queue_size.value == queue


def test_a_queue_holds_two_batches_of_each_worker():
    asked = {"batch": "16", "slo_p99_ms": 1}
    planned = plan_machine("single-socket", models=(make_model("m"),), precision="bf16", **asked)
    assert planned.models["m"].queue_size.value == 2 * 8 * 16
    assert planned.models["m"].queue_size.reason.startswith("what m answers in 2 × 1 ms at 414/s is 1, ")


def test_queue_is_one_number_for_all_models():
    models = (make_model("large", batch_sizes=(1, 16)), make_model("small", batch_sizes=(1, 4)))
    plan = plan_machine("single-socket", models=models, precision="bf16", batch="large=16")
    assert {model.queue_size.value for model in plan.models.values()} == {2 * 8 * 16}
    assert plan.properties["job_queue_size"].value == "256"
