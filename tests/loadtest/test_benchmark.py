"""The benchmark against servers whose peaks are given: what is measured next, and what is quoted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadtest import stats
from loadtest.errors import LoadTestError
from loadtest.experiments import benchmark
from loadtest.payloads.payload import JSON, Payload, make_plain_text
from loadtest.report import render_markdown
from loadtest.servers.openvino_litserve import wrap
from loadtest.tune import peak
from tests.loadtest.test_tune import HOST, Simulated
from tests.plans import make_instance, make_model, make_plan

PLAIN, INT8 = "plain TorchServe FP32", "the kit INT8"
ASKED = {
    "model": "resnet50", "limit_ms": 200.0, "servers": [PLAIN, INT8], "host": HOST,
    "archive": {"id": "x", "weights": "random", "notes": []},
}  # fmt: skip


@pytest.fixture(autouse=True)
def fewer_drawings(monkeypatch):
    monkeypatch.setattr(peak, "RESAMPLES", 200)
    monkeypatch.setattr(stats, "RESAMPLES", 20)


def measure(peaks, change=lambda block: block):
    bench = Simulated(ASKED, lambda name, load: peaks[name], change)
    return bench, benchmark.run(bench)


def test_each_server_is_measured_about_its_own_peak_in_turns_and_compared_with_plain_torchserve():
    bench, result = measure({PLAIN: 10.0, INT8: 80.0})
    assert [*bench.blocks] == ["saturated", "around-1", "limit"]
    rates = {one.server: one.load.rate for one in bench.blocks["limit"].series}
    assert rates == pytest.approx({PLAIN: 11.0, INT8: 88.0}, rel=0.12)  # the last of 0.9, 1, 1.1 of its own
    table = result.tables[0].frame.set_index("server")
    within = "p99 ≤ 200 ms, requests/s"
    assert table.loc[PLAIN, within].value == pytest.approx(10.0, rel=0.06)
    assert table.loc[INT8, within].value == pytest.approx(80.0, rel=0.06)
    assert table.loc[INT8, "ratio"].value == pytest.approx(8.0, rel=0.06)
    assert table.loc[PLAIN, "ratio"] is None
    assert result.passed


def test_a_peak_far_from_a_closed_loops_rate_is_looked_for_further_away(monkeypatch):
    bench, result = measure({PLAIN: 10.0, INT8: 80.0})
    monkeypatch.setattr(benchmark, "PEAK_SHARE", 0.25)
    bench, again = measure({PLAIN: 10.0, INT8: 80.0})
    assert "around-2" in bench.blocks
    values = [one.tables[0].frame.iloc[1, 1].value for one in (result, again)]
    assert values[0] == pytest.approx(values[1], rel=0.08)


def test_what_cannot_be_served_here_and_what_is_doubtful_have_no_figure():
    def change(block):
        bad = [replace(one, facts=replace(one.facts, verify_after={"good": False, "findings": []}))
               if one.server == INT8 else one for one in block.series]  # fmt: skip
        return replace(block, series=tuple(bad))

    _, result = measure({PLAIN: 10.0, INT8: 80.0}, change)
    page = render_markdown(
        result, type("Kept", (), {"host": HOST, "began": "", "name": "x", "commit": ""})(), plots=False
    )
    assert result.tables[0].frame.set_index("server").loc[INT8].iloc[0] == "INVALID"
    assert "80" not in page.partition("Rates about the limit")[0].partition(INT8)[2].partition("\n")[0]
    assert not result.passed


def test_what_served_is_said_from_a_plan_as_results_keep_it():
    def change(block):
        planned = [replace(one, facts=replace(one.facts, plan=plan)) for one in block.series]
        return replace(block, series=tuple(planned))

    one = make_instance(1, {"resnet50": make_model("resnet50", batch_size=4)})
    plan = json.loads(replace(make_plan(), instances={"a1": one}).to_json())
    _, result = measure({PLAIN: 10.0, INT8: 80.0}, change)
    assert result.tables[0].frame.iloc[1]["note"] == "1 instances behind HAProxy, batch 4"


def test_servers_are_chosen_by_a_part_of_their_name():
    assert [*benchmark.list_servers("resnet50", ["plain", "INT8"])] == [
        PLAIN,
        "OpenVINO behind LitServe INT8",
        INT8,
    ]
    with pytest.raises(LoadTestError, match="--only"):
        benchmark.list_servers("resnet50", ["triton"])


def test_litserve_gets_images_as_base64_and_texts_as_json():
    image = Payload(name="a", body=b"\xff\xd8", content_type="image/jpeg", model="resnet50")
    assert (wrap(image).body, wrap(image).content_type) == (b'{"image": "/9g="}', JSON)
    text = Payload(name="a", body=b'{"text": "x"}', content_type=JSON, model="bert")
    assert wrap(text) == text
    assert wrap(make_plain_text("a", "x", model="bert")) == text
