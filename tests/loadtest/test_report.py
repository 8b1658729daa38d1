"""Pages: what is shown, what is hidden, and that the page needs nothing from elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from loadtest.experiments import loadtest
from loadtest.load import Scenario
from loadtest.report import Result, Verdict, make_table, render_html, render_markdown, show, write_report
from loadtest.servers.base import kept_server
from loadtest.stats import Interval
from tests.loadtest.making import keep, make_load, make_series, reading

CLOSED, OPENED = make_load(), make_load(30.0, limit_ms=100.0)


def make_scenario(load, levels):
    return Scenario(load=replace(load, users=None, rate=None), levels=levels, is_open=load.is_open)


def read_loadtest(tmp_path, **changes):
    scenarios = [make_scenario(CLOSED, (16,)), make_scenario(OPENED, ("60%",))]
    blocks = {
        "bert-closed": [make_series("kit", (50.0, 50.5, 49.5), load=CLOSED, **changes)],
        "bert-open-capacity": [make_series("kit", (50.0,))],
        "bert-open": [make_series("kit", (30.0,) * 3, load=OPENED)],
    }
    bench = reading(tmp_path, blocks, asked=loadtest.ask(kept_server("kit"), scenarios))
    return loadtest.run(bench), bench.kept


def test_rates_and_latencies_are_shown_with_their_intervals(tmp_path):
    result, kept = read_loadtest(tmp_path)
    closed, latency = result.verdicts
    assert str(closed).startswith("bert-closed, 16 users: requests/s: 50 (")
    assert str(latency) == "bert-open, 30 requests/s: p95: 50 ms, limit ≤ 100 ms: passed"
    text = render_markdown(result, kept)
    assert "| bert-open " in text
    assert "100 ms kept" in text
    assert "passed / passed" in text
    assert (result.valid, result.passed) == (True, True)


def test_an_invalid_load_shows_no_figure_anywhere_and_says_why(tmp_path):
    result, kept = read_loadtest(tmp_path, errors=7)
    for shown in (render_markdown(result, kept), render_html(result, kept)):
        assert "INVALID" in shown
        assert "21 of 1500 requests failed" in shown
        assert "50.5" not in shown
    assert not result.passed


class Links(HTMLParser):
    """Everything that a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        wanted = {"img": "src", "object": "data", "script": "src", "link": "href"}
        self.found += [value for name, value in attrs if name == wanted.get(tag)]


def test_the_page_is_one_file_that_holds_everything(tmp_path):
    result, kept = read_loadtest(tmp_path)
    page = write_report(result, kept)
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    assert len(links.found) == 2
    assert all(one.startswith("data:image/svg+xml;base64,") for one in links.found)
    names = {file.name for file in kept.folder.iterdir()}
    assert {"report.html", "report.md", "throughput.svg", "latency.svg"} <= names


def test_the_same_result_gives_the_same_page(tmp_path):
    result, kept = read_loadtest(tmp_path)
    first = write_report(result, kept).read_bytes()
    again = loadtest.run(type(reading(tmp_path, {}))(kept))
    assert write_report(again, kept).read_bytes() == first


def test_words_of_others_are_no_markup(tmp_path):
    table = make_table("t", [{"server": "<script>alert(1)</script>", "a|b": "x|y"}])
    result = Result(title="<b>", verdicts=[], tables=[table], notes=["see [here](https://x.org/a?b=1&c) <i>"])
    kept = keep(tmp_path, {})
    page = render_html(result, kept)
    assert "<script>" not in page
    assert '<a href="https://x.org/a?b=1&amp;c">here</a> &lt;i&gt;' in page
    assert "x\\|y" in render_markdown(result, kept)


def test_a_load_whose_capacity_is_in_doubt_leaves_the_others_their_figures(tmp_path):
    scenarios = [make_scenario(CLOSED, (16,)), make_scenario(OPENED, ("60%",))]
    blocks = {
        "bert-closed": [make_series("kit", load=CLOSED)],
        "bert-open-capacity": [make_series("kit", (50.0,), errors=1)],
    }
    result = loadtest.run(reading(tmp_path, blocks, asked=loadtest.ask(kept_server("kit"), scenarios)))
    assert [one.passed for one in result.verdicts] == [True, False]
    assert "the capacity cannot be measured" in result.verdicts[1].why


def interval(value, low, high):
    return Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("requests/s", interval(50.0, 49.0, 51.0), "50.0 (49.0-51.0)"),
        ("requests/s", interval(3.0, 2.9, 3.1), "3.00 (2.90-3.10)"),
        ("ratio to x", interval(2.31, 2.25, 2.37), "2.31× (2.25-2.37)"),
        ("ratio to x", interval(1.02, 0.99, 1.05), "1.020× (0.990-1.050)"),
        ("p95 ms", interval(1234.6, 1200.2, 1300.9), "1235 (1200-1301)"),
        ("idle %", 0.123, "12.3"),
        ("x", None, "–"),
        ("x", math.nan, "–"),
        ("requests", 12345, "12345"),
        ("p50 ms", interval(5.0, 5.0, 5.0), "5"),
    ],
)
def test_cells(column, value, shown):
    assert show(column, value) == shown


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"limit": 9.0}, True),
        ({"limit": 11.0}, False),
        ({"limit": 9.0, "at_least": False}, False),
        ({"failed": True}, False),
        ({"figure": None}, False),
        ({"figure": interval(math.nan, 0, 1), "limit": 1.0}, False),
    ],
)
def test_verdicts(changes, passed):
    assert Verdict(**{"what": "x", "figure": interval(10.0, 9.0, 11.0), **changes}).passed is passed
