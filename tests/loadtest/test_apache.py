"""ab's recorded reports and raw times: replies outside 2xx and requests without an answer are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.drivers.apache import Share, read_report, read_times, run_apache, share_users
from loadtest.drivers.job import make_job, write_job
from loadtest.payload_sets import make_text
from loadtest.scenario import parse_scenario
from tests.loadtest.fake_server import Behaviour, serving

RECORDED = Path(__file__).parent / "recorded"


def report(name: str):
    return read_report((RECORDED / f"{name}.txt").read_text())


def test_a_clean_report():
    found = report("ab-clean")
    assert (found.completed, found.failed, found.non_2xx, found.requests_per_second) == (60, 0, 0, 253.19)


def test_replies_outside_2xx_are_counted():
    found = report("ab-non-2xx")
    assert (found.completed, found.failed, found.non_2xx, found.clean) == (60, 0, 12, False)


def test_connections_closed_without_an_answer_are_failures_though_ab_counts_none():
    assert "Failed requests:        0" in (RECORDED / "ab-hang-ups.txt").read_text()
    found = report("ab-hang-ups")
    assert (found.completed, found.failed, found.clean) == (60, 8, False)


def test_raw_times_are_read():
    records = read_times(RECORDED / "ab-clean.tsv", payload=3, began=1795238208.0)
    assert len(records) == 60
    assert set(records.payload) == {3}
    assert (records.latency.min(), records.latency.max()) == (pytest.approx(0.01), pytest.approx(0.043))


@pytest.mark.parametrize(
    ("users", "payloads", "shares"),
    [
        (5, 2, [Share(payload=0, users=3), Share(payload=1, users=2)]),
        (2, 4, [Share(payload=0, users=1), Share(payload=2, users=1)]),
        (1, 1, [Share(payload=0, users=1)]),
    ],
)
def test_users_are_shared_among_payloads(users, payloads, shares):
    assert share_users(users, payloads) == shares


def test_a_run_sends_every_payload_and_counts_errors(tmp_path):
    raw = {"model": "bert", "payloads": "texts", "arrival": {"loop": "closed"}, "steps": [4], "driver": "ab"}
    scenario = parse_scenario({**raw, "warm_up_s": 0, "duration_s": 1, "timeout_s": 10}, name="x", source="x")
    payloads = [make_text("a", "first"), make_text("b", "second")]
    with serving(Behaviour(error_each=7)) as server:
        job = make_job(scenario, level=4, repeat=0, url=server.url, token="secret", payloads=payloads)
        outcome = run_apache(job, write_job(job, payloads, tmp_path))
        assert server.seen.tokens == {"Bearer secret"}
    assert set(outcome.records.payload) == {0, 1}
    bad = int((~outcome.records.good).sum())
    assert bad == pytest.approx(len(outcome.records) / 7, abs=2)
    assert outcome.requests_per_second > 0
