"""What a batch may hold: what is admitted, what is rejected, and how the bounds come from a timing."""

from __future__ import annotations

import json
import random

import pytest

from handlers.request import Request
from handlers.shared.work import Work, plan_token_work
from tests.handlers.stub import StubHandler, take_stub

BERT = {"tokens_per_batch": 16_470, "batch_s": 28, "longest": 512, "most_tokens": 4096}


def list_statuses(work: Work, *costs: int) -> list[int]:
    return [200 if rejection is None else rejection.status for rejection in work.admit(costs)]


@pytest.mark.parametrize(
    ("costs", "statuses"),
    [
        ((100,), [200]),
        ((60, 40), [200, 200]),
        ((60, 41), [200, 503]),
        ((60, 41, 40), [200, 503, 200]),  # a small one still has room
        ((101, 100), [413, 200]),  # what is never computed takes no room
        ((), []),
    ],
)
def test_a_batch_is_cut_by_its_cost(costs, statuses):
    assert list_statuses(Work(per_batch=100, per_request=100), *costs) == statuses


def test_no_batch_is_ever_above_its_bound():
    draw = random.Random(1)
    work = Work(per_batch=1000, per_request=400)
    for _ in range(200):
        costs = [draw.randint(1, 500) for _ in range(draw.randint(1, 40))]
        taken = [cost for cost, rejection in zip(costs, work.admit(costs), strict=True) if rejection is None]
        assert sum(taken) <= 1000
        assert all(cost > 400 or sum(taken) + cost > 1000 for cost in costs if cost not in taken)


@pytest.mark.parametrize(
    ("seconds_each", "per_batch", "per_request", "worst"),
    [
        (0.0005, 16_470, 4096, 8.235),  # as planned
        (0.0035, 8000, 4096, 28.0),  # half as fast as planned for: fewer tokens, the same time
        (0.014, 2000, 2000, 28.0),  # a full request would take a minute beside another model
    ],
)
def test_a_slow_machine_gets_smaller_batches_not_later_answers(seconds_each, per_batch, per_request, worst):
    work = plan_token_work(seconds_each, **BERT)
    assert (work.per_batch, work.per_request, work.worst_batch_s) == (per_batch, per_request, worst)
    assert 3 * 2 * work.worst_batch_s <= 180


def test_a_rejected_request_stays_rejected_when_its_batch_is_tried_again():
    handler = take_stub(StubHandler(), Work(per_batch=600, per_request=512))

    def raise_for_the_bad_one(stage: str, value: object) -> None:
        if stage == "model" and value == 77:
            raise RuntimeError("planted")

    handler.planted = raise_for_the_bad_one
    replies = handler.answer([Request(content=one) for one in (b"512", b"512", b"77", b"64", b"20")])
    assert [reply.status for reply in replies] == [200, 503, 503, 200, 503]
    replies = handler.answer([Request(content=one) for one in (b"256", b"512", b"77", b"64", b"20")])
    assert [reply.status for reply in replies] == [200, 503, 500, 200, 200]
    assert "256 of 600" in json.loads(replies[1].body)["error"]
