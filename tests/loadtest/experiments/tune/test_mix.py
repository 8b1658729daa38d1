"""MIX: shares, splits of the cores, which is better live, and what is kept of it for `make serve`."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from config.rules.cores import parse_cores
from config.topology import Core, read_topology
from loadtest.__main__ import main
from loadtest.answers.check import Expected
from loadtest.drivers.outcome import Outcome as Rows
from loadtest.drivers.records import make_records
from loadtest.drivers.schedule import order_payloads, plan_arrivals
from loadtest.errors import LoadTestError
from loadtest.experiments.tune import mix, mix_prepare
from loadtest.experiments.tune.candidate import DEFAULT
from loadtest.experiments.tune.mix_prepare import check_mix
from loadtest.experiments.tune.windows import Windows
from loadtest.report import make_section
from loadtest.report.markdown import render_section
from loadtest.results.kept import keep_block, start_result
from loadtest.results.trial import KeptBlock
from loadtest.simulation.search import Limit
from loadtest.systems.fleet import Member
from loadtest.systems.system import System
from loadtest.trials.trial import Load, make_trial
from tests.config.planning import MACHINES, make_inputs
from tests.loadtest.making import ANSWER, GOOD, HOST, QUIET, make_facts
from tests.loadtest.simulated import EXPECTED

MODELS = ("bert", "resnet50")
SHARES = {"bert": 0.3, "resnet50": 0.7}
APART = "bert=0,resnet50=1"
LIMIT = Limit(percentile=99.0, seconds=0.2)
PAYLOAD_MODELS = ["bert"] * 3 + ["resnet50"] * 7
ANSWERS = Expected(
    source="test", answers=EXPECTED.answers * 10, fp32=EXPECTED.fp32 * 10, tolerances=EXPECTED.tolerances * 10
)
PREDICTED = {APART: 110.0, DEFAULT: 100.0}


def test_shared_cpus_are_not_split(monkeypatch):
    shared = read_topology(MACHINES / "container-quota-v2")
    monkeypatch.setattr(mix_prepare, "read_topology", lambda: shared)
    with pytest.raises(LoadTestError, match="MIX needs CPUs of our own"):
        mix_prepare.prepare_mix(None, SHARES, None, None)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("resnet50:0.7,bert:0.3", SHARES),
        ("bert:3 resnet50:7", SHARES),
        ("bert:1,resnet50:1", {"bert": 0.5, "resnet50": 0.5}),
    ],
)
def test_shares_are_1_in_sum(text, shares):
    assert mix.parse_mix(text, MODELS) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("text", "models", "message"),
    [
        (
            "bert:1",
            MODELS,
            "MIX must give each of MODELS its share, two or more, as resnet50:0.7,bert:0.3: got",
        ),
        ("bert:1,bert:2", MODELS, "MIX must give each of MODELS its share"),
        ("bert:1", ("bert",), "MIX must give each of MODELS its share"),
        (
            "bert:0,resnet50:1",
            MODELS,
            "MIX must be numbers above 0 by model, as resnet50:0.7,bert:0.3: got bert:0",
        ),
        ("bert:nan,resnet50:1", MODELS, "MIX must be numbers above 0"),
        ("bert:,resnet50:inf", MODELS, "MIX must be numbers above 0"),
    ],
)
def test_what_is_no_mix_is_refused(text, models, message):
    with pytest.raises(LoadTestError) as error:
        mix.parse_mix(text, models)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "payloads", "message"),
    [
        (
            {"FRONT": "none"},
            "",
            "MIX needs the door, whose instances have cores of their own: got FRONT=none",
        ),
        ({"WORKERS": "2"}, "", "WORKERS must be left out with MIX: each split has its own: got 2"),
        ({"INSTANCES": "2"}, "", "INSTANCES must be left out with MIX"),
        ({}, "texts", "PAYLOADS must be left out with MIX, which sends each model's own: got texts"),
    ],
)
def test_what_a_mix_cannot_have_is_refused(given, payloads, message):
    wish = SimpleNamespace(models=MODELS, given={"FRONT": "haproxy", **given}, payloads=payloads)
    with pytest.raises(LoadTestError, match=message):
        check_mix(wish, mix.EXAMPLE)


def test_the_command_judges_a_mix_before_anything_is_built(capsys):
    plan = ["--models", "resnet50 bert", "--run-dir", "run"]
    assert main(["tune", "--check", "--mix", "bert:1", "--", *plan]) == 1
    assert capsys.readouterr().err.startswith("error: MIX must give each of MODELS its share")


def make_core(number: int) -> Core:
    """With a sibling."""
    return Core(cpu=number, siblings=(number, number + 4), core_id=number, socket=0, node=0, l3=0)


def test_each_split_gives_every_model_whole_cores():
    splits = [mix.name_split(one) for one in mix.list_splits([make_core(n) for n in range(4)], MODELS)]
    assert splits == [
        "bert=0,4,resnet50=1-3,5-7", "bert=0-1,4-5,resnet50=2-3,6-7", "bert=0-2,4-6,resnet50=3,7",
    ]  # fmt: skip
    for split in splits:
        cpus = [cpu for own in parse_cores(split).values() for cpu in own]
        assert sorted(cpus) == [*range(8)]
    three = mix.list_splits([make_core(n) for n in range(4)], ("a", "b", "c"))
    assert [[len(own) for own in split.values()] for split in three] == [[1, 1, 2], [1, 2, 1], [2, 1, 1]]


def test_a_split_ends_where_its_first_model_does_and_shared_cores_where_their_time_does():
    assert mix.predict_split({"bert": 60.0, "resnet50": 70.0}, SHARES) == pytest.approx(100.0)
    assert mix.predict_split({"bert": 0.0, "resnet50": 70.0}, SHARES) == 0.0
    assert mix.predict_shared({"bert": 120.0, "resnet50": 140.0}, SHARES) == pytest.approx(
        1 / (0.3 / 120 + 0.005)
    )
    assert mix.predict_shared({"bert": 0.0, "resnet50": 140.0}, SHARES) == 0.0
    assert mix.choose_splits({"a": 3.0, "b": 9.0, "c": 0.0, "d": 5.0, "e": 4.0}) == {
        "b": 9.0,
        "d": 5.0,
        "e": 4.0,
    }


def measure_block(block, peaks, number):
    """At its peak 1 % of bert's requests are late, above it more; resnet50's are fast."""
    random, trials, rows = np.random.default_rng(number), [], []
    for repeat in range(block.repeats):
        for turn in block.turns:
            trial, records = measure_turn(turn, peaks[turn.member.name], repeat, random)
            trials.append(trial)
            rows.append(records)
    names = dict.fromkeys(turn.member.name for turn in block.turns)
    kept = KeptBlock(
        number=0, name=block.name, began="2026-01-02T03:04:05+00:00", seconds=60.0, generated_here=True,
        systems={name: make_facts(name, models=MODELS, verify_after=GOOD) for name in names},
        trials=tuple(trials),
    )  # fmt: skip
    return kept, rows


def measure_turn(turn, peak, repeat, random):
    rate, scenario = float(turn.level), turn.scenario
    due = plan_arrivals("poisson", rate=rate, begin_s=0.0, end_s=scenario.duration_s, seed=repeat)
    order = order_payloads(len(PAYLOAD_MODELS), seed=repeat)
    late = min(1.0, 0.01 * math.exp(20 * (rate / peak - 1)))
    lines = []
    for at in due.tolist():
        payload = next(order)
        slow = PAYLOAD_MODELS[payload] == "bert" and random.random() < late
        lines.append((payload, at, at, at + (0.3 if slow else 0.05), 200, 0, ""))
    records = make_records(lines, [ANSWER])
    load = Load(
        system=System(name=turn.member.name, models=()), scenario=scenario, level=rate,
        payloads=(), expected=ANSWERS,
    )  # fmt: skip
    trial = make_trial(load, Rows(records=records, wall_zero=0.0, cpu_shares=(0.1,)), repeat=repeat,
                       duration_s=scenario.duration_s)  # fmt: skip
    return dataclasses.replace(trial, cpu=QUIET), records


def run_mix(folder, peaks, blocks=99, minutes=30.0):
    """All blocks, or so many."""

    def open_nothing(_):
        raise AssertionError("a plan brings nothing up")

    course = mix.Course(
        windows=Windows(model="bert resnet50", payloads="mix:", limit=LIMIT, times=1, least_share=0.3),
        predicted=PREDICTED,
        payload_models=PAYLOAD_MODELS,
        budget_s=60 * minutes,
        most_up=9,
        make_member=lambda name: Member(name=name, open=open_nothing),
    )
    asked = {
        "models": list(MODELS), "shares": SHARES, "limit": {"percentile": 99.0, "ms": 200.0},
        "predicted": PREDICTED, "payload_models": PAYLOAD_MODELS, "host": HOST,
    }  # fmt: skip
    experiment = mix.make_experiment(course, asked)
    kept = start_result(mix.KIND, experiment.name, experiment.asked, folder, HOST)
    for number in range(blocks):
        block = experiment.next_block(kept)
        if block is None:
            break
        kept = keep_block(kept, *measure_block(block, peaks, number))
    return kept, experiment


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Cores of their own are a fifth better."""
    return run_mix(tmp_path_factory.mktemp("apart"), {DEFAULT: 100.0, APART: 120.0})


def test_every_window_is_long_enough_for_the_rarest_model(apart):
    kept, _ = apart
    for block in kept.blocks:
        for series, rows in zip(block.trials, kept.read_records(block), strict=True):
            asked = [PAYLOAD_MODELS[number] for number in rows.within(series.begin_s, series.end_s).payload]
            assert asked.count("bert") > 300, block.name


def test_what_is_better_apart_is_found_by_its_worst_model_and_kept(apart, tmp_path):
    kept, experiment = apart
    found = mix.find_outcome(kept)
    assert (found.winner, found.adopted, found.best.name) == (APART, True, APART)
    assert found.ratio.value == pytest.approx(1.2, rel=0.04)
    assert [row.peak.value for row in found.rows] == pytest.approx([100.0, 120.0], rel=0.04)
    assert experiment.next_block(kept) is None
    peak, gain = mix.judge(kept)
    assert peak.what == f"30% bert, 70% resnet50, {APART}: highest rate with p99 ≤ 200 ms"
    assert (gain.what, gain.why) == (f"{APART} / default", "chosen")
    tuned = mix.make_tuned(kept, make_inputs(model_store=str(tmp_path)))
    assert tuned.chosen == {"cores": APART}
    (told,) = tuned.evidence.values()
    assert told.startswith("each model on cores of its own serves 1.")
    text = render_section(make_section(kept))
    assert f"Chosen: CORES={APART}, 1." in text
    assert make_section(kept).whole


def test_a_tie_leaves_all_models_on_all_cores(tmp_path):
    kept, _ = run_mix(tmp_path, {DEFAULT: 100.0, APART: 100.0})
    found = mix.find_outcome(kept)
    assert not found.adopted
    tuned = mix.make_tuned(kept, make_inputs(model_store=str(tmp_path)))
    assert tuned.chosen == {}
    assert "cores are right: nothing that was raced is better" in next(iter(tuned.evidence.values()))
    assert "All models on all cores are right" in render_section(make_section(kept))


def test_a_peak_beyond_the_tried_rates_is_no_figure(tmp_path):
    kept, _ = run_mix(tmp_path, {DEFAULT: 40.0, APART: 35.0}, minutes=0.1)
    assert not mix.find_outcome(kept).adopted
    (verdict,) = mix.judge(kept)
    assert verdict.figure is None
    assert "No figure of default: no rate kept it; give more" in render_section(make_section(kept))


def test_before_the_finals_nothing_is_told_and_what_is_left_counts_them(tmp_path):
    kept, experiment = run_mix(tmp_path, {DEFAULT: 100.0, APART: 120.0}, blocks=1, minutes=0.1)
    assert not make_section(kept).whole
    assert "No finals yet" in render_section(make_section(kept))
    assert experiment.estimate(kept) > 60.0
    assert experiment.next_block(kept).name == "final-1"
