"""The real generator against the fake server: headers, an end before its time, a peak."""

from __future__ import annotations

import time

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.chaos import load, row
from loadtest.experiments.chaos.row import CUT, SILENT, count_kinds
from loadtest.payloads.payload import make_text
from tests.loadtest.fake_server import Behaviour, serving
from tests.server.fakes import wait_for

PAYLOADS = [make_text(f"text {n}", "word " * n, model="bert") for n in range(1, 4)]


def aim(server):
    return load.Target(url=server.url, token="secret", payloads=PAYLOADS)


def test_an_open_loop_says_its_deadline_and_ends_when_it_is_told():
    with serving(Behaviour(workers=64, service_s=0.3)) as server:
        with load.sending(aim(server), rate=40, deadline_ms=2500, seed=1) as under_way:
            assert abs(under_way.zero - time.time()) < 60
            wait_for(lambda: server.seen.requests > 60)
            records = under_way.finish()
        took = time.time() - under_way.zero
    assert took < 90 < load.LONGEST_S
    assert 60 < len(records) == server.seen.requests
    assert records.good.all()  # those under way at the end were waited for
    assert server.seen.list_values("X-Deadline-Ms") == {"2500"}
    assert server.seen.list_values("Authorization") == {"Bearer secret"}
    assert server.seen.connections == len(records)


def test_who_is_left_without_an_answer_is_counted(monkeypatch):
    for module in (load, row):
        monkeypatch.setattr(module, "GIVEN_UP_S", 0.1)
    monkeypatch.setattr(row, "DRIVER_S", 0.05)
    behaviour = Behaviour(workers=64, hang_up_each=10, pause_every_s=1.0, pause_s=0.95)
    with (
        serving(behaviour) as server,
        load.sending(aim(server), rate=40, deadline_ms=200, seed=1) as under_way,
    ):
        wait_for(lambda: server.seen.requests > 60)
        records = under_way.finish()
    silent = records.take(records.status == 0)
    assert len(silent) >= len(records) // 10
    assert set(count_kinds(silent, 0.2)) == {CUT, SILENT}


def test_a_peak_is_what_a_closed_loop_reaches(monkeypatch):
    monkeypatch.setattr(load, "WARM_UP_S", 0.5)
    monkeypatch.setattr(load, "PEAK_S", 2.0)
    with serving(Behaviour(workers=2, service_s=0.05)) as server:
        assert 5 < load.find_peak(aim(server), users=4, deadline_ms=5000) <= 41
    with (
        serving(Behaviour(error_each=5)) as server,
        pytest.raises(LoadTestError, match=r"what the peak is cannot be told: \d+ of \d+ requests failed"),
    ):
        load.find_peak(aim(server), users=4, deadline_ms=5000)


def test_one_photograph_in_ten_is_larger_than_usual_buffers():
    sizes = [len(one.body) for one in load.make_photos("resnet50")]
    assert len(sizes) == 10
    assert [size for size in sizes if size > 250_000] == sizes[-1:]
    assert max(sizes[:-1]) < 100_000
