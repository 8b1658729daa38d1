"""RUNGS=engines: which rungs there are, how each is asked for, seen, and told with what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handlers.engines import ENGINES, inductor
from loadtest.experiments.ladder.engines import list_engine_rungs, make_settings
from loadtest.experiments.ladder.members import OWN_MIB
from loadtest.experiments.ladder.observe import judge_workers
from loadtest.experiments.ladder.rungs import ENGINES as BY_ENGINE
from loadtest.experiments.ladder.rungs import KINDS, find_rung
from loadtest.experiments.ladder.settings import ITEMS, find_engine, make_arguments
from loadtest.report import make_section
from loadtest.report.markdown import render_section
from tests.loadtest.experiments.ladder.results import LAYOUT, see, write_ladder
from tests.loadtest.experiments.ladder.test_judge import make_worker
from tests.loadtest.making import change_facts

RUNGS = list_engine_rungs()


def find_differences(one, other):
    return tuple(item for item in ITEMS if getattr(one, item) != getattr(other, item))


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
        assert find_differences(rung.settings, find_rung(rungs, rung.before).settings) == rung.own != ()


def test_what_is_not_installed_is_named_with_what_to_do():
    (rung,) = (one for one in list_engine_rungs(("openvino",)) if one.name == "openvino-int8")
    assert rung.reason == "openvino is not installed (make setup BACKEND=openvino)"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ipex-int8", "--precision int8 --batch 24 --delay-ms 20"),
        ("openvino-int8", "--precision int8 --backend openvino --batch 24 --delay-ms 20"),
        ("eager-bf16", "--precision bf16 --backend eager --batch 16 --delay-ms 20"),
    ],
)
def test_it_is_the_ladders_top_but_for_engine_and_precision(name, arguments):
    assert " ".join(make_arguments(find_rung(RUNGS, name).settings, LAYOUT, "bert")) == arguments


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("ipex", {}),
        ("eager", {"libraries": (), "described": {"engine": {"name": "eager"}}}),
        (
            "inductor",
            {
                "libraries": (),
                "described": {
                    "engine": {"name": "inductor"},
                    "graph": {"kind": inductor.KIND},
                    "memory_format": {"applicable": False},
                },
            },
        ),
        (
            "openvino",
            {
                "libraries": ("libopenvino.so.2640",),
                "described": {
                    "engine": {"name": "openvino"},
                    "graph": {"kind": "openvino"},
                    "memory_format": {"applicable": False},
                },
            },
        ),
    ],
)
def test_a_live_server_of_each_engine_is_seen_as_asked(engine, changes):
    seen = judge_workers([make_worker(**changes)], batch_size=16, model="resnet50")
    assert {item: one.state for item, one in seen.items()} == vars(make_settings(ENGINES[engine], "bf16"))


def tell_costs(series):
    """As a run leaves them."""
    facts = series.facts
    return replace(
        change_facts(
            series,
            start={"worker_seconds": 21.4},
            seen={**facts.seen, OWN_MIB: [812, 905]},
            accuracy={"resnet50": {"agreement": 0.9921, "largest_probability_difference": 0.0312}},
        ),
        trials=tuple(
            replace(one, memory_mib={"resnet50 1": 1400.2, "resnet50 2": 1410.6}) for one in series.trials
        ),
    )


def write_engines(tmp_path, missing=(), **changes):
    kind = KINDS[BY_ENGINE]
    return write_ladder(tmp_path, kind=kind, rungs=list_engine_rungs(missing), change=changes)


def read_cells(kept, label):
    lines = render_section(make_section(kept)).splitlines()
    (line,) = [one for one in lines if one.startswith(f"| {label} ") and one.count("|") == 11]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_an_engine_is_told_with_what_it_costs(tmp_path):
    kept = write_engines(tmp_path, **{"openvino-int8": tell_costs})
    cells = read_cells(kept, "openvino int8")
    assert cells[3].startswith("1.50× (")
    assert cells[4].startswith("2.25× (")
    assert cells[5:] == ["helps", "21 s", "905 of 1411 MiB", "99.2%", "0.0312"]
    assert read_cells(kept, "ipex fp32")[3:6] == ["–", "1", "–"]
    assert make_section(kept).whole
    assert make_section(kept).plots[0].name == "engines-resnet50"


def test_what_is_not_installed_is_named_and_what_is_doubtful_has_no_figure(tmp_path):
    def plant(series):
        rung = find_rung(list_engine_rungs(), series.system)
        return change_facts(tell_costs(series), seen=see(rung, graph="frozen torchscript"))

    kept = write_engines(tmp_path, ("openvino",))
    assert read_cells(kept, "openvino bf16")[5] == (
        "does not apply: openvino is not installed (make setup BACKEND=openvino)"
    )
    kept = write_engines(tmp_path, **{"openvino-bf16": plant})
    assert not make_section(kept).valid
    assert read_cells(kept, "openvino bf16")[1:] == ["INVALID", *"–––", "INVALID", *"––––"]
