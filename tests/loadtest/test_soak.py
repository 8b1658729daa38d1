"""Memory is compared worker by worker, and the mixture holds what people send."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from loadtest import soak
from loadtest.errors import LoadTestError
from loadtest.payloads import read_list
from loadtest.soak import (
    Growth,
    compare_memory,
    cut_into_legs,
    main,
    read_resident_mib,
    render_growths,
    write_mixture,
)

EARLY = {("resnet50", 11): 1000.0, ("bert", 12): 2000.0}


@pytest.mark.parametrize(("late", "bounded"), [(1049.9, True), (1050.1, False), (900.0, True)])
def test_five_percent_is_the_limit(late, bounded):
    assert Growth(model="bert", pid=1, early_mib=1000.0, late_mib=late).bounded is bounded


def test_workers_are_compared_one_by_one():
    late = {("resnet50", 11): 1100.0, ("bert", 12): 1900.0}
    growths = compare_memory(EARLY, late)
    assert [round(one.percent, 1) for one in growths] == [10.0, -5.0]
    lines = render_growths(growths, requests=20_000)
    assert "resnet50 worker 11: 1000 → 1100 MiB (+10.00 %), BEYOND 5 %" in lines[1]
    assert "bert worker 12: 2000 → 1900 MiB (-5.00 %), within 5 %" in lines[2]
    assert lines[-1].endswith("3000 → 3000 MiB, ratio 1.0000")


def test_a_worker_that_was_started_anew_makes_it_void():
    with pytest.raises(LoadTestError, match="workers must stay the same"):
        compare_memory(EARLY, {("resnet50", 11): 1000.0, ("bert", 13): 2000.0})


def test_resident_memory_is_read_of_the_process():
    assert 5 < read_resident_mib(os.getpid()) < 100_000


def test_a_worker_that_is_gone_is_said(tmp_path):
    with pytest.raises(LoadTestError, match="worker 7 has ended"):
        read_resident_mib(7, tmp_path)


def test_the_mixture_is_half_texts_half_photographs(tmp_path, tiny_text_archive):
    (tmp_path / "bert.mar").symlink_to(tiny_text_archive)
    payloads = read_list(write_mixture(tmp_path / "mixture", ["resnet50", "bert"], tmp_path))
    counted = Counter(one.path for one in payloads)
    assert counted["/predictions/bert"] == pytest.approx(counted["/predictions/resnet50"], rel=0.05)
    assert len({one.content_type for one in payloads}) == 4
    assert all((tmp_path / "mixture" / one.file).is_file() for one in payloads)


@pytest.mark.parametrize(("late_mib", "code"), [(1010.0, 0), (1100.0, 1)])
def test_the_exit_code_is_the_verdict_and_the_figures_are_kept(monkeypatch, tmp_path, late_mib, code):
    growths = [Growth(model="bert", pid=1, early_mib=1000.0, late_mib=late_mib)]
    monkeypatch.setattr(soak, "soak", lambda options: growths)
    assert main(["--results", str(tmp_path)]) == code
    assert len(list(tmp_path.glob("*/soak.json"))) == 1


@pytest.mark.parametrize("requests", [1004, 1007, 20_000])
def test_all_requests_are_sent_in_legs(requests):
    first, *rest = cut_into_legs(requests)
    assert first == 1000
    assert first + sum(rest) == requests
    assert max(rest) - min(rest) <= 1


def test_good_values_are_only_looked_at(tmp_path):
    assert main(["--check", "--results", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())


def test_too_few_requests_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--requests", "1000"])
    assert "REQUESTS must be at least 1004: got 1000" in capsys.readouterr().err
