"""ab's recorded reports and raw times: replies outside 2xx and requests without an answer are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.drivers import drive
from loadtest.drivers.apache import Share, read_report, read_times, share_users
from loadtest.drivers.job import make_job, write_job
from loadtest.drivers.locust import ONE_PROCESS
from loadtest.errors import LoadTestError
from loadtest.payloads import make_text
from loadtest.scenarios.scenario import parse_scenario
from tests.loadtest.fake_server import Behaviour, serving

RECORDED = Path(__file__).parent / "recorded"


def report(name: str):
    return read_report((RECORDED / f"{name}.txt").read_text())


def test_a_clean_report():
    found = report("ab-clean")
    assert (found.failed, found.non_2xx, found.requests_per_second) == (0, 0, 253.19)


def test_replies_outside_2xx_are_counted():
    found = report("ab-non-2xx")
    assert (found.failed, found.non_2xx) == (0, 12)


def test_connections_closed_without_an_answer_are_failures_though_ab_counts_none():
    assert "Failed requests:        0" in (RECORDED / "ab-hang-ups.txt").read_text()
    found = report("ab-hang-ups")
    assert found.failed == 8


def test_a_report_without_its_figure_is_refused():
    with pytest.raises(LoadTestError, match="ab's report has no line 'Complete requests'"):
        read_report("apr_socket_recv: Connection refused (111)")


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


def make_closed_job(folder, url, **changes):
    raw = {"model": "bert", "payloads": "texts", "arrival": {"loop": "closed"}, "steps": [4], "driver": "ab"}
    timing = {"warm_up_s": 0, "duration_s": 1, "timeout_s": 10}
    scenario = parse_scenario({**raw, **timing, **changes}, name="x", source="x")
    payloads = [make_text("a", "first", model="bert"), make_text("b", "second", model="other")]
    job = make_job(scenario, level=4, repeat=0, url=url, token="secret", payloads=payloads)
    return job, write_job(job, payloads, folder)


def test_a_run_sends_every_payload_to_its_path_and_counts_errors(tmp_path):
    with serving(Behaviour(error_each=7)) as server:
        outcome = drive(*make_closed_job(tmp_path, server.url), ONE_PROCESS, "ab")
        assert server.seen.list_values("Authorization") == {"Bearer secret"}
        assert {path for path, _, _ in server.seen.received} == {"/predictions/bert", "/predictions/other"}
    assert set(outcome.records.payload) == {0, 1}
    bad = int((~outcome.records.good).sum())
    assert bad == pytest.approx(len(outcome.records) / 7, abs=2)
    assert outcome.requests_per_second > 0


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(LoadTestError, match="ab failed"):
        drive(*make_closed_job(tmp_path, "http://127.0.0.1:9"), ONE_PROCESS, "ab")


def test_ab_ends_by_time_alone(tmp_path):
    with pytest.raises(LoadTestError, match="ab drives closed loops that end by time alone"):
        drive(*make_closed_job(tmp_path, "http://127.0.0.1:9", stop_after=5), ONE_PROCESS, "ab")
