"""The real generator against the fake server: what Locust does is recorded, counted and judged right.

Bounds are one-sided where time is involved: a slow machine only makes waits longer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.answers import Expected, Tolerance, check_answers
from loadtest.drivers.generator import ONE_PROCESS, Crew, Outcome, parse_crew, run_locust
from loadtest.drivers.job import make_job, write_job
from loadtest.errors import LoadTestError
from loadtest.payload_sets import make_text
from tests.loadtest.fake_server import Behaviour, answer_to, serving
from tests.loadtest.summaries import make_scenario

pytestmark = pytest.mark.slow

PAYLOADS = [make_text(f"text {n}", "word " * n) for n in range(1, 6)]
EXPECTED = Expected(
    source="the fake server's own rule",
    answers=tuple(answer_to(one.body) for one in PAYLOADS),
    fp32=None,
    tolerance=Tolerance(relative=0.01, absolute=0.001),
)


def generate(
    folder: Path,
    behaviour: Behaviour,
    *,
    loop: str = "open",
    level: float = 50,
    crew: Crew = ONE_PROCESS,
    **changes: Any,
) -> Outcome:
    scenario = make_scenario(loop, **{"warm_up_s": 1.0, "duration_s": 3.0, "timeout_s": 10.0, **changes})
    scenario = replace(scenario, arrival=replace(scenario.arrival, process="constant"))
    with serving(behaviour) as server:
        job = make_job(scenario, level=level, repeat=0, url=server.url, token="secret", payloads=PAYLOADS)
        outcome = run_locust(job, write_job(job, PAYLOADS, folder), crew)
        assert server.seen.tokens == {"Bearer secret"}
        assert server.seen.content_types == {"application/json"}
        assert server.seen.requests == len(outcome.records)
    return outcome


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
    assert max(under_way) >= 40  # the pause held up no later request
    assert check_answers([records], EXPECTED).wrong == 0
    assert len(outcome.cpu_shares) == 1


def test_failures_of_every_kind_are_counted(tmp_path):
    behaviour = Behaviour(error_each=10, hang_up_each=11, drip_each=13, drip_s=0.3, wrong_each=17)
    records = generate(tmp_path, behaviour, timeout_s=2.0).records
    kinds = {text.split(":")[0] for text in records.error if text}
    assert kinds == {"LocustBadStatusCode", "HTTPConnectionClosed", "Timeout"}
    asked = np.arange(1, len(records) + 1)
    hung, failed = asked % 11 == 0, (asked % 10 == 0) & (asked % 11 != 0)
    slow = (asked % 13 == 0) & (asked % 10 != 0) & (asked % 11 != 0)
    assert int((~records.good).sum()) == int((hung | failed | slow).sum())
    wrong = (asked % 17 == 0) & ~(hung | failed | slow)
    assert check_answers([records], EXPECTED).wrong == int(wrong.sum())


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


def test_a_generator_that_cannot_start_says_why(tmp_path):
    job = make_job(make_scenario(), level=1, repeat=0, url="http://127.0.0.1:9", token="", payloads=PAYLOADS)
    folder = write_job(job, PAYLOADS, tmp_path)
    (folder / "0000.body").unlink()
    with pytest.raises(LoadTestError, match=r"Locust ended .* without a report: .*0000.body"):
        run_locust(job, folder, Crew())
