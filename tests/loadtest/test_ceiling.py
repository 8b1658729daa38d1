"""The ceiling: rates from a known clock, and shares from a kept result."""

from __future__ import annotations

import json
from itertools import count

import pytest

from loadtest.ceiling import RESNET50, STRETCH_S, Work, find_reference, read_reached, render, time_work


def test_a_products_rate_comes_from_its_time():
    ticks = count()
    # Two readings of this clock lie 0.01 s apart; a product takes one.
    rate = time_work(Work(compute=lambda: None, multiply_adds=10), clock=lambda: next(ticks) * 0.01)
    products = round(STRETCH_S / 0.01) - 1
    assert rate == pytest.approx(products * 10 / STRETCH_S, rel=0.05)


def make_result(rate: float) -> dict:
    side = {"name": "kit", "requests_per_second": {"median": 1.0}, "repeats": [{"model_share": None}]}
    limit = {"name": "in-process int8", "requests_per_second": {"median": rate}}
    return {"cpus": 2, "sides": [side, {**limit, "repeats": [{"model_share": 0.8}, {"model_share": 1.0}]}]}


def test_the_model_alone_is_faster_than_with_decoding():
    assert find_reference(make_result(90.0)) == pytest.approx(90.0 / 0.9 / 2)
    assert find_reference({"cpus": 2, "sides": make_result(90.0)["sides"][:1]}) is None


def test_the_latest_result_is_compared(tmp_path):
    for name, rate in (("20260101T000000Z", 50.0), ("20260102T000000Z", 90.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "resnet50-int8.json").write_text(json.dumps(make_result(rate)))
    assert read_reached(tmp_path) == {"int8": pytest.approx(50.0)}


def test_the_table_says_how_near_the_ceiling_is():
    text = "\n".join(render({"fp32": 100 * RESNET50, "int8": 200 * RESNET50}, {"int8": 150.0}))
    assert "150.0 images/s: 75% of the ceiling" in text
    assert "100.0" in text
