"""Thousands of broken bodies, beside good requests: each is the client's fault, and none grows a worker."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import HealthCheck, given, settings

from tests.reliability.client import Load, Request, send, send_all
from tests.reliability.conftest import MODELS, Server
from tests.reliability.mutations import SEEDS, make, requests

pytestmark = pytest.mark.fuzz

BODIES = 5_500
WARM_UP = 10
"""Times that every good body is sent first: a worker's memory settles with what it usually does."""
BESIDE_RATE = 4.0
"""Good requests a second, which share batches with the broken ones."""
GROWTH = 1.1


def test_no_body_fails_loses_or_grows_a_worker(server: Server) -> None:
    good = [make(seed.model, seed.body, seed.content_type) for seed in SEEDS]
    warm_up = [dataclasses.replace(one, token=server.token) for one in good * WARM_UP]
    assert all(outcome.status for outcome in send_all(server.port, warm_up, clients=16))
    token, before = server.token, server.use()

    @settings(max_examples=BODIES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests())
    def ask(request: Request) -> None:
        outcome = send(server.port, dataclasses.replace(request, token=token))
        assert 200 <= outcome.status < 500, (outcome.failure, outcome.status, outcome.body[:200])

    known = itertools.cycle([server.smoke_request(model) for model in MODELS.split()])
    with Load(server.port, known, rate=BESIDE_RATE) as beside:
        ask()
    wrong = [one for one in beside.outcomes if not server.is_right(one.request.path.split("/")[-1], one)]
    assert [(one.failure, one.status, one.body[:200]) for one in wrong] == []
    assert server.send_smoke_requests() == []
    after = server.use()
    assert (after.java, after.resident_mib.keys()) == (before.java, before.resident_mib.keys())
    assert after.out_of_memory == before.out_of_memory
    growth = {pid: after.resident_mib[pid] / mib for pid, mib in before.resident_mib.items()}
    assert max(growth.values()) <= GROWTH, growth
