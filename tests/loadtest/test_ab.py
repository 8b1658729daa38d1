"""ab's reports: what it counts is kept as its own, replies outside 2xx and requests without an answer too."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.answers import AnswerCheck
from loadtest.bench import make_window
from loadtest.drivers import parse_ab_report, run_ab
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload, make_text
from loadtest.tables import find_latency_ms
from loadtest.validity import find_doubts
from tests.loadtest.fake_server import Behaviour, serving
from tests.loadtest.making import make_load, make_series

RECORDED = Path(__file__).parent / "recorded"
TEXT = make_text("a", "first", model="bert")
BYTES = Payload(name="bytes", body=b"\x00\xff{", content_type="application/octet-stream", model="other")


def report(name: str):
    return parse_ab_report((RECORDED / f"{name}.txt").read_text())


def test_a_clean_report():
    found = report("ab-clean")
    assert (found.complete, found.failed, found.non_2xx, found.requests_per_second) == (60, 0, 0, 253.19)
    assert {*found.percentiles_ms} == {"50", "90", "95", "99"}


def test_replies_outside_2xx_are_counted():
    found = report("ab-non-2xx")
    assert (found.failed, found.non_2xx) == (0, 12)


def test_connections_closed_without_an_answer_are_failures_though_ab_counts_none():
    assert "Failed requests:        0" in (RECORDED / "ab-hang-ups.txt").read_text()
    assert report("ab-hang-ups").failed == 8


def test_a_report_without_its_figure_is_rejected():
    with pytest.raises(LoadTestError, match="ab's report has no line 'Complete requests'"):
        parse_ab_report("apr_socket_recv: Connection refused (111)")


def make_ab_load(**changes):
    return make_load(
        **{"users": 4, "driver": "ab", "warm_up_s": 0.0, "duration_s": 1.0, "timeout_s": 10.0, **changes}
    )


@pytest.mark.parametrize("payload", [TEXT, BYTES])
def test_one_ab_sends_one_payload_and_its_figures_are_kept_as_its_own(tmp_path, payload):
    load = make_ab_load()
    with serving(Behaviour(error_each=7)) as server:
        outcome = run_ab(load, url=server.url, token="secret", payload=payload, folder=tmp_path)
        assert server.asked.list_values("Authorization") == {"Bearer secret"}
        assert {(path, body) for path, body, _ in server.asked.received} == {(payload.path, payload.body)}
        assert server.asked.list_values("Content-type") == {payload.content_type}
    window = make_window(load, outcome, AnswerCheck())
    assert len(outcome.rows) == 0  # no row is invented
    assert window.ab == outcome.ab
    assert window.requests == outcome.ab.complete
    assert window.errors == outcome.ab.non_2xx == pytest.approx(window.requests / 7, abs=1)
    assert window.rate == outcome.ab.requests_per_second > 0
    assert "Requests per second" in window.ab.text


def test_its_percentiles_are_quoted_as_it_says_and_errors_make_it_invalid():
    window = {"ab": report("ab-clean"), "answers": AnswerCheck(), "requests": 60}
    series = make_series("kit", (253.19,) * 4, load=make_ab_load(), **window)
    assert find_doubts(series) == []
    assert find_latency_ms(series, 95).value == series.windows[0].ab.percentiles_ms["95"]
    assert find_latency_ms(series, 99) is None  # of 240 requests
    failed = make_series("kit", (253.19,), load=make_ab_load(), errors=12, **window)
    assert [doubt.rule for doubt in find_doubts(failed)] == ["errors"]


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(LoadTestError, match="ab failed"):
        run_ab(make_ab_load(), url="http://127.0.0.1:9", token="", payload=TEXT, folder=tmp_path)


def test_ab_has_no_rate(tmp_path):
    with pytest.raises(LoadTestError, match="ab drives closed loops alone"):
        run_ab(
            make_load(20.0, driver="ab"), url="http://127.0.0.1:9", token="", payload=TEXT, folder=tmp_path
        )
