"""The search brackets the limit by steps and halves what is left; a backlog or failures break a rate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadtest.experiments.slo import BISECTIONS, STEP, Tried, find_ends, judge_rate, next_rate, run
from loadtest.results import plain
from tests.loadtest.making import make_load, make_series, reading
from tests.loadtest.virtual import VirtualServer, noisy, series_of_rows, simulate_open, simulate_series

LIMIT = make_load(20.0, name="bert-slo", percentile=99.0, limit_ms=300.0)


def search(limit: float, start: float) -> list[Tried]:
    """Of a server that keeps every rate up to `limit`."""
    tried, rate = [], start
    while rate is not None:
        tried.append(Tried(rate=rate, kept=rate <= limit, why=""))
        rate = next_rate(tried)
    return tried


@pytest.mark.parametrize("start", [8.0, 12.0, 40.0, 90.0])
def test_the_search_ends_close_to_the_limit_from_wherever_it_starts(start):
    low, high = find_ends(search(40.0, start))
    assert low <= 40.0 < high
    assert high / low == pytest.approx(STEP ** (1 / 2**BISECTIONS), rel=0.01)


def test_a_server_that_keeps_or_breaks_everything_ends_the_search():
    low, high = find_ends(search(math.inf, 10.0))
    assert (low > 50.0, high) == (True, math.inf)
    assert find_ends(search(0.0, 10.0))[0] == 0.0


def test_a_rate_that_was_broken_below_a_kept_one_counts():
    tried = [
        Tried(rate=10, kept=True, why=""),
        Tried(rate=14, kept=False, why=""),
        Tried(rate=16, kept=True, why=""),
    ]
    assert find_ends(tried) == (10, 14)


def test_virtual_servers_find_the_rate_that_queueing_theory_allows():
    """Two workers of 50 ms serve 40 a second; p99 of 300 ms needs some room."""

    def keeps(rate: float) -> bool:
        return judge_rate(simulate_series(replace(LIMIT, rate=rate, duration_s=1100 / rate), repeats=1)).kept

    assert keeps(25.0)
    assert not keeps(40.0)


def test_a_backlog_is_not_kept_even_when_the_limit_is():
    load = replace(LIMIT, rate=60.0, limit_ms=60_000.0, duration_s=17.0)
    random = np.random.default_rng(1001)
    server = VirtualServer(service=noisy(0.05, spread=0.1, random=random), workers=2)
    rows = simulate_open(server, rate=60, begin_s=-3, end_s=17)
    tried = judge_rate(series_of_rows([rows], load))
    assert not tried.kept
    assert "a backlog grows" in tried.why


def test_failed_requests_and_too_few_break_a_rate():
    def fail(rows):
        rows.loc[200:219, "status"] = 503

    failing = judge_rate(simulate_series(replace(LIMIT, rate=30.0, duration_s=40.0), repeats=1, change=fail))
    assert (failing.kept, failing.why.startswith("20 of ")) == (False, True)
    few = judge_rate(simulate_series(replace(LIMIT, duration_s=10.0), repeats=1))
    assert (few.kept, few.why) == (False, "too few requests for p99")


def read_search(tmp_path, latencies):
    """A kept search: the limit is 300 ms, each rate has one latency in seconds; the capacity is 400/s."""
    asked = {"server": "kit", "load": plain(replace(LIMIT, rate=None, users=None))}
    blocks = {"bert-slo-capacity": [make_series("kit", (400.0,))]}
    for number, (rate, latency) in enumerate(latencies, 1):
        load = replace(LIMIT, rate=rate)
        blocks[f"rate-{number:02d}"] = [make_series("kit", (rate,), load=load, latency=latency)]
    return run(reading(tmp_path, blocks, kind="slo", name="bert-slo", asked=asked))


def test_the_page_has_the_rate_and_the_one_that_broke_it(tmp_path):
    # 60 % of the capacity is kept, a step more is not; then the geometric middle, twice.
    result = read_search(tmp_path, [(240.0, 0.1), (312.0, 0.4), (273.64, 0.2), (292.19, 0.4)])
    (verdict,) = result.verdicts
    assert verdict.passed
    assert (verdict.figure.value, verdict.figure.high) == (273.64, 292.19)
    assert [table.title for table in result.tables][:2] == ["Highest rate within the limit", "Rates tried"]
    assert result.plots[0] is not None


def test_a_doubtful_rate_ends_the_search_without_a_figure(tmp_path):
    asked = {"server": "kit", "load": plain(replace(LIMIT, rate=None, users=None))}
    late = make_series("kit", (60.0,), load=replace(LIMIT, rate=60.0), generator_cores=(0.95,))
    blocks = {"bert-slo-capacity": [make_series("kit", (100.0,))], "rate-01": [late]}
    (verdict,) = run(reading(tmp_path, blocks, kind="slo", asked=asked)).verdicts
    assert (verdict.passed, verdict.figure) == (False, None)
    assert "the generator used too much CPU" in verdict.why
