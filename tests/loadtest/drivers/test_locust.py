"""The real generator against the fake server: what Locust does is recorded, counted and judged right.

Bounds are one-sided where time is involved: a slow machine only makes waits longer.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drivers import drive
from loadtest.drivers.job import Outcome, make_job, write_job
from loadtest.drivers.locust import ONE_PROCESS, Crew, parse_crew, start_locust
from loadtest.drivers.records import Records
from loadtest.errors import LoadTestError
from loadtest.payloads.payload import make_plain_text, make_text
from loadtest.scenarios.scenario import Arrival, Scenario
from tests.loadtest.fake_server import Behaviour, Seen, answer_to, serving

PAYLOADS = [make_text(f"text {n}", "word " * n, model="bert") for n in range(1, 5)]
PAYLOADS.append(make_plain_text("plain", "a text", model="other"))


def count_wrong(records: Records) -> int:
    """Good ones that are not the fake server's answer to their payload."""
    good = records.take(records.good)
    pairs = zip(good.payload.tolist(), good.answer.tolist(), strict=True)
    return sum(json.loads(records.answers[got]) != answer_to(PAYLOADS[sent].body) for sent, got in pairs)


def make_scenario(loop: str, **changes: Any) -> Scenario:
    timing = {"warm_up_s": 1.0, "duration_s": 3.0, "timeout_s": 10.0}
    arrival = Arrival(loop=loop, process="constant")
    known = {"name": "x", "model": "bert", "payloads": "texts", "arrival": arrival, "steps": (1,), **timing}
    return Scenario(**{**known, **changes})


def send(
    folder: Path,
    behaviour: Behaviour,
    *,
    loop: str = "open",
    level: float = 50,
    crew: Crew = ONE_PROCESS,
    **changes: Any,
) -> tuple[Outcome, Seen]:
    scenario = make_scenario(loop, **changes)
    with serving(behaviour) as server:
        job = make_job(scenario, level=level, repeat=0, url=server.url, token="secret", payloads=PAYLOADS)
        outcome = drive(job, write_job(job, PAYLOADS, folder), crew)
    assert server.seen.list_values("Authorization") == {"Bearer secret"}
    assert server.seen.requests == len(outcome.records)
    return outcome, server.seen


def generate(folder: Path, behaviour: Behaviour, **values: Any) -> Outcome:
    return send(folder, behaviour, **values)[0]


def test_an_open_loop_sends_what_was_planned_and_sees_a_pause_whole(tmp_path):
    """1 + 3 + 2 seconds at 50/s are 300 requests; a pause of 1 s starts 2 s after the first one."""
    outcome = generate(tmp_path, Behaviour(pause_every_s=2, pause_s=1, workers=64))
    records = outcome.records
    assert len(records) == 300
    assert records.good.all()
    assert np.allclose(np.diff(np.sort(records.scheduled)), 0.02)
    assert (records.lag >= -0.002).all()
    window = records.within(0, 3)
    assert np.quantile(window.latency, 0.99) >= 0.9
    under_way = [int(((records.sent <= at) & (records.ended > at)).sum()) for at in records.sent]
    assert max(under_way) >= 20  # the pause held up no later request
    assert count_wrong(records) == 0
    assert len(outcome.cpu_shares) == 1


def test_failures_of_every_kind_are_counted(tmp_path):
    behaviour = Behaviour(error_each=10, hang_up_each=11, drip_each=13, drip_s=0.3, wrong_each=17)
    records = generate(tmp_path, behaviour, timeout_s=5.0).records
    kinds = {text.split(":")[0] for text in records.error if text}
    assert kinds == {"LocustBadStatusCode", "HTTPConnectionClosed", "Timeout"}
    asked = np.arange(1, len(records) + 1)
    hung, failed = asked % 11 == 0, (asked % 10 == 0) & (asked % 11 != 0)
    slow = (asked % 13 == 0) & (asked % 10 != 0) & (asked % 11 != 0)
    assert int((~records.good).sum()) == int((hung | failed | slow).sum())
    wrong = (asked % 17 == 0) & ~(hung | failed | slow)
    assert count_wrong(records) == int(wrong.sum())


def test_a_closed_loop_keeps_its_users_busy_and_no_more(tmp_path):
    records = generate(tmp_path, Behaviour(service_s=0.01, workers=4), loop="closed", level=8).records
    assert records.good.all()
    assert np.isnan(records.scheduled).all()
    moments = np.linspace(0, 2.9, 50)
    busy = [int(((records.sent <= at) & (records.ended > at)).sum()) for at in moments]
    assert max(busy) <= 8
    assert set(records.payload) == set(range(len(PAYLOADS)))


def test_several_processes_share_one_schedule(tmp_path):
    outcome = generate(tmp_path, Behaviour(), crew=Crew(processes=2))
    assert len(outcome.records) == 300
    assert len(np.unique(outcome.records.scheduled)) == 300
    assert len(outcome.cpu_shares) == 2


def test_each_payload_goes_to_its_path_with_its_type(tmp_path):
    _, seen = send(tmp_path, Behaviour(), duration_s=0.2, warm_up_s=0.0)
    kinds = {body: (path, headers["Content-Type"]) for path, body, headers in seen.received}
    assert kinds == {one.body: (one.path, one.content_type) for one in PAYLOADS}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_closed_loop_can_stop_after_so_many_requests_and_waits_for_all(tmp_path, processes):
    """Its window of 60 s bounds it only; 21 requests of three users are answered and recorded."""
    crew = Crew(processes=processes)
    limits = {"warm_up_s": 0.0, "duration_s": 60.0, "stop_after": 21}
    outcome, seen = send(tmp_path, Behaviour(service_s=0.3), loop="closed", level=3, crew=crew, **limits)
    assert seen.requests == 21
    assert outcome.records.good.all()
    assert seen.connections == 3
    assert outcome.records.ended.max() < 30
    assert all(0 < share < 2 for share in outcome.cpu_shares)


@pytest.mark.parametrize("processes", [1, 2])
def test_payloads_can_be_sent_as_they_are_listed(tmp_path, processes):
    limits = {"warm_up_s": 0.0, "duration_s": 60.0, "stop_after": 20, "shuffled": False}
    crew = Crew(processes=processes)
    _, seen = send(tmp_path, Behaviour(), loop="closed", level=processes, crew=crew, **limits)
    bodies = [body for _, body, _ in seen.received]
    assert Counter(bodies) == {one.body: 4 for one in PAYLOADS}
    if processes == 1:
        assert bodies == [one.body for one in PAYLOADS] * 4


def test_shuffled_payloads_are_sent_evenly(tmp_path):
    limits = {"warm_up_s": 0.0, "duration_s": 60.0, "stop_after": 20}
    records = generate(tmp_path, Behaviour(), loop="closed", level=3, **limits).records
    assert Counter(records.payload.tolist()) == dict.fromkeys(range(5), 4)


def test_a_server_that_is_not_there_gives_errors_not_figures(tmp_path):
    scenario = make_scenario("closed", stop_after=3, warm_up_s=0.0)
    job = make_job(scenario, level=1, repeat=0, url="http://127.0.0.1:9", token="", payloads=PAYLOADS)
    records = drive(job, write_job(job, PAYLOADS, tmp_path), ONE_PROCESS).records
    assert records.status.tolist() == [0, 0, 0]
    assert not records.good.any()


def test_a_run_that_is_given_up_leaves_no_process(tmp_path):
    job = make_job(
        make_scenario("open"), level=1, repeat=0, url="http://127.0.0.1:9", token="", payloads=PAYLOADS
    )
    running = start_locust(job, write_job(job, PAYLOADS, tmp_path), ONE_PROCESS)
    running.end()
    assert running.process.returncode == -9
    with pytest.raises(LoadTestError, match=r"Locust ended \(-9\) without a report"):
        running.wait()


@pytest.mark.parametrize(
    ("text", "crew"), [("", Crew()), ("3", Crew(processes=3)), ("remote:2", Crew(processes=2, remote=True))]
)
def test_processes(text, crew):
    assert parse_crew(text) == crew


@pytest.mark.parametrize("text", ["0", "many", "remote:", "100"])
def test_processes_that_cannot_be(text):
    with pytest.raises(
        LoadTestError, match=f"PROCESSES must be a number from 1 to 99, or remote:N: got {text}"
    ):
        parse_crew(text)
