"""Batch and delay by what a batch takes and by the limit; the line that a batch profile is made into."""

from __future__ import annotations

import pytest

from config.plan import Plan
from config.planning.batching import fit
from tests.config.planning import MODELS, TEXTS, make_model, plan_machine, time_sizes
from tests.config.test_profile import make_job, time_job

WARMED = (1, 2, 4, 8, 16)


def time_line(fixed_ms: float, each_ms: float, sizes=(1, 4, 16), tail_s=0.0) -> dict[str, dict[str, float]]:
    return time_sizes({size: (fixed_ms + each_ms * size) / 1000 for size in sizes}, tail_s)


def plan_timed(taken_ms: dict[int, float], *, tail_ms=0.0, **changes) -> Plan:
    """Planned by what batches take: of texts, of which any number is a batch, where 24 are timed; else of
    what is warmed in WARMED."""
    models = (make_model("bert", **TEXTS) if 24 in taken_ms else make_model("resnet50"),)
    given = {"precision": "int8", "topology": "", "instances": 1, **changes}
    profile = time_job(
        make_job(models, **given),
        tail_s=tail_ms / 1000,
        **{models[0].name: {size: ms / 1000 for size, ms in taken_ms.items()}},
    )
    return plan_machine("two-cores", models, profile=profile, **given)


BERT_AVX2 = {1: 99.0, 8: 471.0, 24: 1321.3}
"""INT8, packed texts of mixed lengths, on two slow cores; 24 as the line through the two that were seen."""
BERT_AVX2_FP32 = {1: 139.0, 8: 682.0, 24: 1923.1}
BERT_ZEN4 = {1: 20.9, 8: 130.8, 24: 382.0}
RESNET50 = {1: 13.5, 4: 45.0, 16: 171.0}


@pytest.mark.parametrize(
    ("taken_ms", "tail_ms", "limit_ms", "batch", "keeps"),
    [
        # 3 + 10.5 ms each: 64.5, 76.9, 85.1, 89.9, 92.5/s by batches of 1, 2, 4, 8, 16 with TorchServe's 2 ms
        (RESNET50, 0, 2000, 8, True),  # 0.972 of 16's rate
        (RESNET50, 0, 500, 8, True),  # 3 × 171 ms are beyond
        (RESNET50, 0, 200, 4, True),  # 3 × 87
        (RESNET50, 0, 100, 2, True),
        (RESNET50, 0, 41, 1, True),  # 0.70 of the capacity
        (RESNET50, 0, 40, 4, False),  # nothing keeps it; 4 has 0.920 of 16's rate, 2 has 0.831
        # 30 + 10 each: 38.5, 55.6, 71.4, 83.3/s by 2, 4, 8, 16
        ({1: 40, 4: 70, 16: 190}, 0, 210, 4, True),
        ({1: 40, 4: 70, 16: 190}, 0, 209, 16, False),  # 2 keeps it, at 0.46 of the capacity
        # all is each one's
        ({1: 100, 4: 400, 16: 1600}, 0, 2000, 1, True),
        ({1: 100, 4: 400, 16: 1600}, 0, 200, 1, False),
        # all is fixed
        ({1: 10, 4: 10, 16: 10}, 0, 200, 16, True),
        # 45.9 + 53.1 each: 18.3/s by 32 texts, a tenth less is 16.5, 6 have 16.4 and 7 have 16.7
        (BERT_AVX2, 0, 200, 7, False),
        (BERT_AVX2, 300, 500, 7, False),  # the longest of a hundred takes 399 ms alone
        (BERT_AVX2, 0, 296, 7, False),
        (BERT_AVX2, 0, 298, 1, True),  # 9.9/s, above 9.15
        (BERT_AVX2, 0, 500, 2, True),  # 3 × 152.1
        (BERT_AVX2, 0, 1000, 5, True),  # 3 × 311.6
        # 61.4 + 77.6 each: 12.6/s by 32, a tenth less is 11.3, 5 have 11.1 and 6 have 11.4
        (BERT_AVX2_FP32, 0, 200, 6, False),
        # 50 + 1 each: half of 32's 381/s are 13's, 9 tenths 28's
        ({1: 51, 8: 58, 24: 74}, 0, 200, 16, True),
        ({1: 51, 8: 58, 24: 74}, 0, 189, 13, True),
        ({1: 51, 8: 58, 24: 74}, 0, 188, 28, False),
        # 6 + 7.7 each
        ({1: 13.7, 8: 67.6, 24: 190.8}, 0, 100, 3, True),
        ({1: 13.7, 8: 67.6, 24: 190.8}, 0, 200, 6, True),  # 0.979 of 7's
        ({1: 13.7, 8: 67.6, 24: 190.8}, 0, 500, 13, True),
        # 5.2 + 15.7 each, and what the longest of a hundred takes more
        (BERT_ZEN4, 0, 130, 2, True),
        (BERT_ZEN4, 76, 130, 4, False),
        (BERT_ZEN4, 76, 160, 1, True),
        (BERT_ZEN4, 0, 200, 3, True),
        (BERT_ZEN4, 76, 200, 2, True),
        (BERT_ZEN4, 0, 1000, 9, True),
    ],
)  # fmt: skip
def test_batch_by_what_batches_take_and_the_limit(taken_ms, tail_ms, limit_ms, batch, keeps):
    plan = plan_timed(taken_ms, tail_ms=tail_ms, slo_p99_ms=limit_ms)
    ((name, planned),) = plan.models.items()
    said = "CANNOT BE KEPT" not in plan.reasons[f"a1.{name}.batch_size"]
    assert (planned.batch_size, said, plan.slo_p99_ms) == (batch, keeps, limit_ms)


def test_for_latency_nothing_is_batched_whatever_that_gives_away():
    assert plan_timed(BERT_AVX2, mode="latency").models["bert"].batch_size == 1


@pytest.mark.parametrize(("fixed_ms", "each_ms"), [(3, 10.5), (0, 20), (50, 0), (7, 0.1)])
@pytest.mark.parametrize("sizes", [(1, 4, 16), (1, 8, 24), (1, 16)])
def test_a_line_is_found_again(fixed_ms, each_ms, sizes):
    service = fit(time_line(fixed_ms, each_ms, sizes, tail_s=0.05))
    found = (service.fixed_ms, service.each_ms, service.tail_ms)
    assert found == (pytest.approx(fixed_ms, abs=1e-6), pytest.approx(each_ms, abs=1e-6), pytest.approx(50))


def test_what_is_off_a_line():
    """One point is a line through nothing, and no part is below nothing. A large batch that took a tenth too
    long does not hide what a small one takes; the tail is that of the smallest."""
    assert fit(time_line(3, 9, (4,))).each_ms == pytest.approx(39 / 4)
    steep, falling = fit(time_line(-3, 13, (1, 4))), fit(time_line(23, -3, (1, 4)))
    assert (steep.fixed_ms, falling.each_ms) == (0, 0)
    assert min(steep.each_ms, falling.fixed_ms) > 0
    timed = time_line(10, 10, tail_s=0.05)
    timed["16"] |= {"median_s": 1.1 * timed["16"]["median_s"], "p99_s": 1.0}
    assert fit(timed).take_ms(1) == pytest.approx(20, rel=0.02)
    assert fit(timed).tail_ms == pytest.approx(50)


def test_a_profile_that_others_disturbed_says_so():
    timed = time_line(10, 10)
    assert "DOUBTFUL" not in fit(timed).source
    timed["4"]["busy"] = 0.7
    assert fit(timed).source.endswith(", DOUBTFUL: others took 30% of a CPU meanwhile")


@pytest.mark.parametrize(
    ("mode", "precision", "sizes", "batch"),
    [
        ("throughput", "fp32", WARMED, 1),
        ("throughput", "bf16", WARMED, 2),
        ("throughput", "bf16", (32, 64), 32),
        ("latency", "bf16", WARMED, 1),
        ("latency", "fp32", (4, 8), 4),
    ],
)
def test_without_a_profile_constants_follow_the_same_rule(mode, precision, sizes, batch):
    models = (make_model("m", batch_sizes=sizes),)
    planned = plan_machine("two-cores", models, mode=mode, precision=precision).models["m"]
    assert (planned.batch_size, planned.max_batch_delay_ms) == (batch, 1)


def test_more_cores_of_a_worker_take_less_time():
    given = {"precision": "bf16", "workers": 1}
    plans = [plan_machine("two-cores", MODELS[1:], **given, cores_per_worker=cores) for cores in (1, 2)]
    assert [plan.models["resnet50"].batch_size for plan in plans] == [2, 4]


def test_what_is_given_is_planned():
    for plan in plan_machine(batch={"bert": 3}, delay_ms={"bert": 5, "*": 2}).instances.values():
        bert, resnet50 = plan.models["bert"], plan.models["resnet50"]
        assert (bert.batch_size, resnet50.batch_size) == (3, 1)
        assert (bert.max_batch_delay_ms, resnet50.max_batch_delay_ms) == (5, 2)
