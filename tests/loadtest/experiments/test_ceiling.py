"""The ceiling: rates from a known clock, and what was reached from kept targets."""

from __future__ import annotations

from itertools import count

import pytest

from loadtest.experiments.ceiling import RESNET50, STRETCH_S, Work, read_reached, render, time_work
from loadtest.results.kept import read_kept
from tests.loadtest.making import change_facts, make_kept, make_series

TWO_CORES = {"layout": {"workers_per_model": {"value": 2}, "cores_per_worker": {"value": 1}}}


def test_a_products_rate_comes_from_its_time():
    ticks = count()
    # Two readings of this clock lie 0.01 s apart; a product takes one.
    rate = time_work(Work(compute=lambda: None, multiply_adds=10), clock=lambda: next(ticks) * 0.01)
    products = round(STRETCH_S / 0.01) - 1
    assert rate == pytest.approx(products * 10 / STRETCH_S, rel=0.05)


def keep(tmp_path, rate, **changes):
    name = "in-process resnet50 int8"
    series = change_facts(make_series(name, (rate,) * 3, model_share=0.9, **changes), plan=TWO_CORES)
    return make_kept(tmp_path, {"resnet50-int8": [series]}, kind="targets", name="targets")


def test_the_latest_valid_result_is_compared_a_core(tmp_path):
    for rate, changes in ((50.0, {}), (90.0, {}), (70.0, {"errors": 1})):
        read_kept(keep(tmp_path, rate, **changes).folder)
    make_kept(tmp_path, {}, kind="targets", name="targets")
    assert read_reached(tmp_path) == {"int8": pytest.approx(90.0 / 0.9 / 2)}


def test_the_table_says_how_near_the_ceiling_is():
    text = "\n".join(render({"fp32": 100 * RESNET50, "int8": 200 * RESNET50}, {"int8": 150.0}))
    assert "150.0 images/s: 75% of the ceiling" in text
    assert "100.0" in text
