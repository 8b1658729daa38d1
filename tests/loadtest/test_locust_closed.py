"""The closed loop sends what it shall, as often as it shall, and keeps a raw row of each answer."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest.drivers.locust_closed import ClosedLoop, ClosedLoopResult, run_closed_loop
from loadtest.errors import LoadTestError
from loadtest.payloads import write_texts
from tests.loadtest.making import make_samples

TEXTS = [f"text {number}" for number in range(5)]


@pytest.fixture
def payloads(tmp_path):
    return write_texts(tmp_path / "payloads", TEXTS, model="echo")


def make_job(url, payloads, **values):
    known = {"token": "secret", "users": 3, "seconds": 60.0, "most_requests": 20}
    return ClosedLoop(url=url, payloads=str(payloads), **{**known, **values})


def test_so_many_requests_are_sent_and_recorded(fake_server, payloads, tmp_path):
    result = run_closed_loop(make_job(fake_server.url, payloads), tmp_path / "run")
    samples = result.samples
    assert len(samples) == len(fake_server.received) == 20
    assert samples.errors == 0
    assert set(samples.size.tolist()) == {len(fake_server.answer)}
    assert (samples.latency > 0).all()
    assert (samples.start >= 0).all()
    assert result.cpu_seconds > 0
    assert fake_server.connections == 3


def test_payloads_are_sent_evenly_to_their_path_with_the_token(fake_server, payloads, tmp_path):
    samples = run_closed_loop(make_job(fake_server.url, payloads), tmp_path / "run").samples
    assert {path for path, _, _ in fake_server.received} == {"/predictions/echo"}
    assert Counter(body.decode() for _, body, _ in fake_server.received) == dict.fromkeys(TEXTS, 4)
    assert Counter(samples.payload.tolist()) == dict.fromkeys(range(5), 4)
    headers = fake_server.received[0][2]
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_payloads_can_be_sent_as_they_are_listed(fake_server, payloads, tmp_path):
    run_closed_loop(make_job(fake_server.url, payloads, shuffle=False, users=1), tmp_path / "run")
    assert [body.decode() for _, body, _ in fake_server.received] == TEXTS * 4


def test_the_token_does_not_stay_in_a_file(fake_server, payloads, tmp_path):
    run_closed_loop(make_job(fake_server.url, payloads), tmp_path / "run")
    kept = [file for file in (tmp_path / "run").iterdir() if b"secret" in file.read_bytes()]
    assert kept == []


@pytest.mark.parametrize("status", [400, 503])
def test_answers_outside_2xx_are_errors(fake_server, payloads, tmp_path, status):
    fake_server.status = status
    samples = run_closed_loop(make_job(fake_server.url, payloads), tmp_path / "run").samples
    assert set(samples.status.tolist()) == {status}
    assert samples.errors == 20


def test_a_server_that_is_not_there_gives_errors_not_figures(payloads, tmp_path):
    job = make_job("http://127.0.0.1:9", payloads, most_requests=3)
    samples = run_closed_loop(job, tmp_path / "run").samples
    assert samples.status.tolist() == [0, 0, 0]


def test_a_run_is_bounded_in_time(fake_server, payloads, tmp_path):
    job = make_job(fake_server.url, payloads, seconds=1.0, warm_up_seconds=0.2, most_requests=None)
    result = run_closed_loop(job, tmp_path / "run")
    end = result.samples.end
    # Far beyond the second it shall last: a busy machine is late, but no run goes on for ever.
    assert len(result.samples) > 0
    assert result.samples.start.max() < 30
    assert len(result.measured) == ((end >= 0.2) & (end < 1.2)).sum()


def test_what_locust_says_is_in_the_error(payloads, tmp_path):
    (payloads / "payloads.json").write_text("[]")
    with pytest.raises(LoadTestError, match=r"(?s)Locust failed.*at least one payload"):
        run_closed_loop(make_job("http://127.0.0.1:9", payloads), tmp_path / "run")


@pytest.mark.parametrize(
    ("values", "measured", "rate"),
    [
        # Ten answers a second for 3 s.
        ({"seconds": 2.0, "warm_up_seconds": 0.55, "most_requests": None}, 20, 10.0),
        ({"seconds": 60.0, "warm_up_seconds": 0.0, "most_requests": 30}, 30, 10.0),
    ],
)
def test_the_rate_is_of_the_measured_time_alone(values, measured, rate):
    job = make_job("http://127.0.0.1:9", "folder", **values)
    result = ClosedLoopResult(job=job, samples=make_samples([0.1] * 30), cpu_seconds=0.0)
    assert len(result.measured) == measured
    assert result.requests_per_second == pytest.approx(rate)
