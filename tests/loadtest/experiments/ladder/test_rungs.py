"""Each rung differs from the one it is compared with in its own setting alone, whatever the model."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.load import PARTS, count_users, make_scenario
from loadtest.experiments.ladder.rungs import (
    BERT,
    MODELS,
    RESNET50,
    STOCK_ONE,
    TOP,
    choose,
    find_rung,
    list_all,
    list_left_out,
    list_rungs,
)
from loadtest.experiments.ladder.settings import ITEMS, Settings, list_switches, make_arguments
from loadtest.trials.block import Timing
from tests.loadtest.experiments.ladder.results import LAYOUT

INT8 = ["--precision", "int8"]


def find_differences(one, other):
    return tuple(item for item in ITEMS if getattr(one, item) != getattr(other, item))


@pytest.mark.parametrize("model", MODELS)
def test_a_rung_differs_from_the_one_before_in_its_own_setting_alone(model):
    rungs = list_rungs(model)
    for rung in (one for one in rungs if one.before and not one.reason):
        before = find_rung(rungs, rung.before)
        assert set(find_differences(rung.settings, before.settings)) == set(rung.own), rung.name


@pytest.mark.parametrize("model", MODELS)
def test_what_is_left_out_differs_from_the_top_in_one_setting(model):
    top = find_rung(list_rungs(model), TOP)
    for rung in (one for one in list_left_out(model) if not one.reason):
        assert find_differences(rung.settings, top.settings) == rung.own
        assert len(rung.own) == 1


@pytest.mark.parametrize("model", MODELS)
def test_a_side_rung_carries_no_other(model):
    rungs = list_rungs(model)
    side = {rung.name for rung in rungs if rung.side}
    assert not side & {rung.before for rung in rungs if not rung.side}


@pytest.mark.parametrize("model", MODELS)
def test_the_top_has_everything_on_and_every_setting_is_put_on_by_some_rung(model):
    rungs = [rung for rung in list_rungs(model) if not rung.reason]
    assert find_rung(rungs, TOP).settings == Settings()
    put_on = {item for rung in rungs for item in rung.own}
    means_nothing = {"channels_last"} if model == BERT else {"buckets", "packing"}
    assert put_on == set(ITEMS) - means_nothing


def test_what_means_nothing_for_a_model_is_listed_and_not_measured():
    (rung,) = (one for one in list_rungs(BERT) if one.reason)
    assert (rung.name, rung.reason) == ("channels-last", "the model has no convolutions")
    assert find_rung(list_rungs(BERT), "ipex").before == "kit-off"
    assert [one.name for one in list_left_out(RESNET50) if one.reason] == ["without-packing"]


def test_only_pictures_baseline_with_one_worker_batches_as_that_of_the_targets():
    one = {model: find_rung(list_rungs(model), STOCK_ONE) for model in MODELS}
    assert one.pop(BERT).own == ("workers",)
    assert {rung.own for rung in one.values()} == {("workers", "batches")}


@pytest.mark.parametrize("model", MODELS)
def test_torch_compile_is_compared_with_eager_and_its_freezing_with_it(model):
    rungs = list_rungs(model)
    compiled, frozen = find_rung(rungs, "compile"), find_rung(rungs, "inductor")
    assert compiled.before == ("kit-off" if model == BERT else "channels-last")
    assert frozen.before == "compile"
    for rung, off in ((compiled, ["freeze"]), (frozen, [])):
        assert (rung.own, rung.side) == (("graph",), True)
        arguments = make_arguments(rung.settings, LAYOUT, model)
        assert arguments[:4] == ["--precision", "fp32", "--backend", "inductor"]
        assert [one for one in list_switches(rung.settings) if one not in ("packing", "buckets")] == off


def test_the_top_is_what_people_serve_but_for_batches_that_fill():
    assert make_arguments(Settings(), LAYOUT, RESNET50) == [*INT8, "--batch", "16", "--delay-ms", "20"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "kit-off",
            "--precision fp32 --backend eager --allocator system --openmp gnu --no-pinning "
            "--off channels_last,trace,freeze --profile latency --workers 1",
        ),
        ("pinning", "--precision fp32 --profile latency --workers 2 --cores-per-worker 1"),
        ("int8", "--precision int8 --profile latency --workers 2 --cores-per-worker 1"),
        ("without-pinning", "--precision int8 --no-pinning --batch 16 --delay-ms 20"),
        ("without-batches", "--precision int8 --profile latency --workers 2 --cores-per-worker 1"),
    ],
)
def test_arguments(name, arguments):
    rung = find_rung(list_all(RESNET50), name)
    assert " ".join(make_arguments(rung.settings, LAYOUT, RESNET50)) == arguments


def test_texts_are_cut_to_warmed_lengths_and_then_packed_on_the_last_rungs():
    off = make_arguments(find_rung(list_rungs(BERT), "kit-off").settings, LAYOUT, BERT)
    assert "trace,freeze,packing,buckets" in off
    top = find_rung(list_rungs(BERT), TOP)
    assert (top.own, top.before) == (("packing",), "buckets")
    below = find_rung(list_rungs(BERT), "buckets")
    assert (below.own, below.before) == (("batches", "buckets"), "int8")
    filled = ["--batch", "24", "--delay-ms", "20"]
    assert make_arguments(below.settings, LAYOUT, BERT) == [*INT8, "--off", "packing", *filled]


def test_a_trial_of_some_rungs_compares_only_these():
    chosen = choose(list_all(RESNET50), ["ipex", "freeze"])
    assert [(rung.name, rung.before, bool(rung.own)) for rung in chosen] == [
        ("ipex", None, False),
        ("freeze", "ipex", True),
    ]
    with pytest.raises(LoadTestError, match=r"--only must name some of stock, .*: got onednn"):
        choose(list_all(RESNET50), ["onednn"])


def test_users_fill_the_batches_there_are():
    users = {rung.name: count_users(rung) for rung in list_rungs(RESNET50)}
    expected = {"stock": 8, "stock-one": 32, "kit-off": 8, "int8": 8, "top": 64}
    assert {name: users[name] for name in expected} == expected


@pytest.mark.parametrize("model", MODELS)
def test_only_stock_as_it_comes_needs_longer_windows_cut_into_parts(model):
    scenarios = {rung.name: make_scenario(rung, model, Timing(seconds=3.0)) for rung in list_rungs(model)}
    found = {name: (one.duration_s, one.parts) for name, one in scenarios.items()}
    assert found.pop("stock") == (12.0, PARTS)
    assert set(found.values()) == {(3.0, 1)}
