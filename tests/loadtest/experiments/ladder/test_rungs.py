"""Each rung differs from the one it is compared with in its own setting alone, whatever the model."""

from __future__ import annotations

import dataclasses

import pytest

from handlers.engines import ENGINES
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.experiment import MOST_SERVERS, USABLE_MEMORY, cut_groups
from loadtest.experiments.ladder.rungs import (
    BERT,
    MODELS,
    PARTS,
    RESNET50,
    TOP,
    Settings,
    choose,
    count_users,
    find_engine,
    find_rung,
    list_all,
    list_engine_rungs,
    list_left_out,
    list_rungs,
    list_switches,
    make_arguments,
    make_scenario,
)
from loadtest.trials.block import Timing
from tests.loadtest.experiments.ladder.results import LAYOUT

ITEMS = [field.name for field in dataclasses.fields(Settings)]
INT8 = ["--precision", "int8"]


def find_differences(one, other):
    return tuple(item for item in ITEMS if getattr(one, item) != getattr(other, item))


@pytest.mark.parametrize("model", MODELS)
def test_a_rung_differs_from_the_one_it_is_compared_with_in_one_setting(model):
    """But for batches, which come with the workers or buckets that they need, and the kit's handler."""
    rungs = list_all(model)
    for rung in (one for one in rungs if one.before and not one.reason):
        differs = find_differences(rung.settings, find_rung(rungs, rung.before).settings)
        assert differs
        assert len({*differs} - {"handler", "batches"}) <= 1


@pytest.mark.parametrize("model", MODELS)
def test_a_side_rung_carries_no_other(model):
    rungs = list_rungs(model)
    side = {rung.name for rung in rungs if rung.side}
    assert not side & {rung.before for rung in rungs if not rung.side}


@pytest.mark.parametrize("model", MODELS)
def test_the_top_has_everything_on(model):
    assert find_rung(list_rungs(model), TOP).settings == Settings()


def test_what_means_nothing_for_a_model_is_listed_and_not_measured():
    (rung,) = (one for one in list_rungs(BERT) if one.reason)
    assert (rung.name, rung.reason) == ("channels-last", "the model has no convolutions")
    assert find_rung(list_rungs(BERT), "ipex").before == "kit-off"
    assert [one.name for one in list_left_out(RESNET50) if one.reason] == ["without-packing"]


@pytest.mark.parametrize("model", MODELS)
def test_torch_compile_is_compared_with_eager_and_its_freezing_with_it(model):
    rungs = list_rungs(model)
    compiled, frozen = find_rung(rungs, "compile"), find_rung(rungs, "inductor")
    assert compiled.before == ("kit-off" if model == BERT else "channels-last")
    assert frozen.before == "compile"
    for rung, off in ((compiled, ["freeze"]), (frozen, [])):
        assert rung.side
        arguments = make_arguments(rung.settings, LAYOUT, model)
        assert arguments[:4] == ["--precision", "fp32", "--backend", "inductor"]
        assert [one for one in list_switches(rung.settings) if one not in ("packing", "buckets")] == off


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
    assert top.before == "buckets"
    below = find_rung(list_rungs(BERT), "buckets")
    assert below.before == "int8"
    filled = ["--batch", "24", "--delay-ms", "20"]
    assert make_arguments(below.settings, LAYOUT, BERT) == [*INT8, "--off", "packing", *filled]


def test_a_trial_of_some_rungs_compares_only_these():
    chosen = choose(list_all(RESNET50), ["ipex", "freeze"])
    assert [(rung.name, rung.before) for rung in chosen] == [("ipex", None), ("freeze", "ipex")]
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


@pytest.mark.parametrize("missing", [(), ("openvino",), ("ipex",)])
def test_each_engine_has_a_rung_in_each_precision_it_offers(missing):
    rungs = list_engine_rungs(missing)
    offered = {(engine.name, precision) for engine in ENGINES.values() for precision in engine.flags}
    assert {(find_engine(rung.settings), rung.settings.precision) for rung in rungs} == offered
    assert len(rungs) == len(offered)
    assert {find_engine(rung.settings) for rung in rungs if rung.reason} == {*missing}


@pytest.mark.parametrize(
    ("missing", "compared"),
    [
        (
            (),
            "openvino-fp32:ipex-fp32 eager-fp32:ipex-fp32 ipex-bf16:ipex-fp32 openvino-bf16:ipex-bf16 "
            "eager-bf16:ipex-bf16 ipex-int8:ipex-fp32 openvino-int8:ipex-int8",
        ),
        (("openvino",), "eager-fp32:ipex-fp32 ipex-bf16:ipex-fp32 eager-bf16:ipex-bf16 ipex-int8:ipex-fp32"),
        (("ipex", "openvino"), "eager-bf16:eager-fp32"),
    ],
)
def test_it_is_compared_with_the_first_engine_in_its_precision_and_that_one_with_fp32(missing, compared):
    others = {*ENGINES} - {"ipex", "openvino", "eager"}
    rungs = [rung for rung in list_engine_rungs((*missing, *others)) if not rung.reason]
    known = " ".join(f"{rung.name}:{rung.before}" for rung in rungs if rung.before)
    assert [known[: len(compared)], rungs[0].before] == [compared, None]
    for rung in rungs[1:]:
        assert find_differences(rung.settings, find_rung(rungs, rung.before).settings)


def cut(rungs, memory=1000, available=1e6):
    return cut_groups(rungs, lambda name: memory, available)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("available", [1e6, 4000 / USABLE_MEMORY, 3000 / USABLE_MEMORY])
def test_every_rung_is_first_measured_beside_the_one_it_is_compared_with(model, available):
    rungs, seen = list_all(model), set()
    for group in cut(rungs, available=available):
        assert len(group.members) == len(set(group.members)) <= MOST_SERVERS
        assert 1000 * len(group.members) <= USABLE_MEMORY * available
        new = [one for one in rungs if one.name in set(group.members) - seen]
        assert {one.before for one in new if one.before} <= set(group.members)
        seen |= set(group.members)
    assert seen == {one.name for one in rungs if not one.reason}


@pytest.mark.parametrize("model", MODELS)
def test_blocks_have_names_of_their_own_and_are_linked_by_rungs_that_both_have(model):
    groups = cut(list_all(model))
    assert len({group.name for group in groups}) == len(groups)
    for number, group in enumerate(groups[1:], start=1):
        earlier = {name for one in groups[:number] for name in one.members}
        assert set(group.members) & earlier


def test_memory_that_holds_no_pair_is_refused_with_what_is_needed():
    with pytest.raises(LoadTestError, match=r"stock must be up together and need 1000 MiB: got 800"):
        cut(list_rungs("resnet50"), available=1000)
