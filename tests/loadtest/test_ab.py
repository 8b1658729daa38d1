"""ab's report is read with its traps: replies outside 2xx and failed requests are never passed over."""

from __future__ import annotations

import pytest

from loadtest.ab import parse_ab, run_ab
from loadtest.errors import LoadTestError

CLEAN = """
Server Software:
Server Hostname:        127.0.0.1
Concurrency Level:      32
Time taken for tests:   17.938 seconds
Complete requests:      800
Failed requests:        0
Keep-Alive requests:    800
Requests per second:    44.59 [#/sec] (mean)
Time per request:       717.522 [ms] (mean)

Percentage of the requests served within a certain time (ms)
  50%    701
  66%    711
  99%    951
 100%   1013 (longest request)
"""


def test_a_clean_report_is_read():
    result = parse_ab(CLEAN)
    assert (result.requests_per_second, result.completed, result.clean) == (44.59, 800, True)
    assert result.percentiles_ms == {50: 701, 66: 711, 99: 951, 100: 1013}


def test_replies_outside_2xx_make_a_run_unclean():
    result = parse_ab(CLEAN.replace("Keep-Alive", "Non-2xx responses:      3\nKeep-Alive"))
    assert (result.non_2xx, result.clean) == (3, False)


def test_failed_requests_make_a_run_unclean():
    result = parse_ab(CLEAN.replace("Failed requests:        0", "Failed requests:        7"))
    assert (result.failed, result.clean) == (7, False)


def test_a_report_without_its_figure_is_refused():
    with pytest.raises(LoadTestError, match="no line like"):
        parse_ab("apr_socket_recv: Connection refused (111)")


def test_a_server_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "body").write_bytes(b"x")
    with pytest.raises(LoadTestError, match="ab failed"):
        run_ab(
            "http://127.0.0.1:9/",
            tmp_path / "body",
            "text/plain",
            token="",
            requests=1,
            concurrency=1,
            timeout_s=5,
        )
