"""A whole tuning against servers whose peaks are given: what is measured next, adopted, and kept."""

from __future__ import annotations

import math
import zlib
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from loadtest import stats
from loadtest.answers import AnswerCheck
from loadtest.bench import Bench, make_window
from loadtest.drivers import Outcome
from loadtest.errors import NotMeasuredError
from loadtest.machine import CpuUse
from loadtest.report import render_markdown
from loadtest.results import Block, Facts, Series, plain, read_result, start_result
from loadtest.rows import NO_ANSWER, make_rows
from loadtest.tune import experiment, peak
from loadtest.tune.experiment import LEAST_GAIN, measure_race, show_race
from loadtest.tune.peak import ALL_KEPT, NONE_KEPT, WITHIN
from loadtest.tune.plans import DEFAULT, Candidate, list_neighbours

MODEL, ALLOWED, SIZES = "resnet50", 0.01, (1, 2, 4, 8, 16)
BOTH, MIX = ("bert", MODEL), {"bert": 0.3, MODEL: 0.7}
BEST, LARGER, WIDER, INT8 = "w2x1-b4", "w2x1-b16", "w1x2-b8", "w2x1-b8-ipex-int8"
WHOLE = ["start", "round-1", "round-2", "final-1", "final-2"]
GOOD = {"good": True, "findings": []}
RIGHT = AnswerCheck(
    checked=100, source="test", labels_compared=100, labels_same=100, largest_difference=0.001
)
QUIET = CpuUse(seconds=10.0, cpus=64, by_role={"worker": 500.0}, others=1.0, stolen=0.0)
HOST = {"flags": ["avx2"], "virtual": True, "vendor": "GenuineIntel", "usable_cores": 2, "memory_gib": 8}


@pytest.fixture(autouse=True, scope="module")
def fewer_drawings():
    """These tests hold what is adopted, not the third digit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peak, "RESAMPLES", 200)
        patch.setattr(stats, "RESAMPLES", 20)
        yield


def make_asked(*, minutes=60.0, memory_mib=9000, shares=None):
    models = [*shares] if shares else [MODEL]
    default = Candidate(workers=2, cores_per_worker=1, batch=dict.fromkeys(models, 8))
    int8 = [] if shares else [replace(default, variant="ipex int8")]
    near = list_neighbours(default, dict.fromkeys(models, SIZES), free_layout=True)
    return plain({
        "models": models, "shares": shares or {}, "limit": {"percentile": 99.0, "ms": 200}, "instances": 1,
        "payloads": "photos", "payload_models": models if shares else [], "budget_minutes": minutes,
        "memory_mib": memory_mib, "candidates": [asdict(known) for known in (default, *int8, *near)],
        "variants": dict.fromkeys(models, "ipex bf16"), "weights": dict.fromkeys(models, "random"),
    })  # fmt: skip


class Simulated:
    """A bench whose plans have given peaks: there p99 is the limit; windows drift by some percent."""

    def __init__(self, asked, peaks, change=lambda block: block, seed=""):
        self.asked, self.peaks, self.change, self.seed, self.blocks = asked, peaks, change, seed, {}
        self.kept, self.say = SimpleNamespace(host=HOST), lambda line: None

    def turns(self, name, pairs, *, repeats=1, warm_up_s=0.0):
        series = tuple(self.measure(name, server.name, load, repeats) for server, load in pairs)
        seconds = sum(2.0 + window.duration_s for one in series for window in one.windows)
        block = Block(name=name, began="2026-01-02T03:04:05+00:00", seconds=seconds, series=series)
        self.blocks[name] = self.change(block)
        return self.blocks[name]

    def measure(self, block, plan, load, repeats):
        load = load if load.is_open else replace(load, users=32)
        facts = Facts(name=plan, models=load.models, is_kit=True, verify_before=GOOD, verify_after=GOOD)
        rows = [self.draw(load, plan, f"{self.seed} {block} {plan} {load.rate} {n}") for n in range(repeats)]
        known = {"cpu": QUIET, "memory_mib": {"resnet50 1": 400.0}}
        windows = [
            make_window(load, Outcome(rows=one, wall_zero=0.0, cpu_shares=(0.1,)), RIGHT) for one in rows
        ]
        windows = tuple(replace(one, repeat=n, **known) for n, one in enumerate(windows))
        return Series(facts=facts, load=load, windows=windows, rows=tuple(rows))

    def draw(self, load, plan, seed):
        random, best = np.random.default_rng(zlib.crc32(seed.encode())), self.peaks(plan, load)
        if not load.is_open:  # a closed loop is faster than the peak
            sent = np.arange(0, load.duration_s, 1 / (1.4 * best))
            return make_rows((0, math.nan, at, at + 0.05, 200, NO_ANSWER, "") for at in sent)
        due = np.arange(-load.warm_up_s, load.duration_s, 1 / load.rate).round(6)
        scale = 0.2 * (random.uniform(0.97, 1.03) * load.rate / best) ** 8
        took = (scale * np.exp(0.3 * (random.standard_normal(len(due)) - 2.326))).round(6)
        return make_rows((n % 2, at, at, at + took[n], 200, NO_ANSWER, "") for n, at in enumerate(due))


def given(peaks, rest=80.0):
    """100 of the default where nothing else is said."""
    return lambda plan, load: {DEFAULT: 100.0, **peaks}.get(plan, rest)


def race(peaks, change=lambda block: block, seed="", **how):
    return measure_race(Simulated(make_asked(**how), peaks, change, seed))


@pytest.fixture(scope="module")
def whole():
    return race(given({BEST: 150.0}))


def names(found):
    return [block.name for block in found.blocks]


def loads_of(block):
    plans = dict.fromkeys(one.server for one in block.series)
    return {plan: [one.load for one in block.series if one.server == plan] for plan in plans}


def test_rounds_halve_the_candidates_at_the_same_rates_until_one_meets_the_default(whole):
    assert names(whole) == WHOLE
    first, second, final = (loads_of(whole.blocks[n]) for n in (1, 2, -1))
    assert {*first} == {*whole.plans} == {DEFAULT, BEST, LARGER, WIDER, INT8}
    assert (len(second), {*second} >= {DEFAULT, BEST}, {*final}) == (3, True, {DEFAULT, BEST})
    for loads in (first, second):
        assert all(own == loads[DEFAULT] and len(own) == 3 for own in loads.values())
    # 0.7 of a closed loop of 140; then about each one's own peak.
    assert [one.rate for one in first[BEST]] == pytest.approx([0.7 * 98, 98, 1.3 * 98], rel=0.02)
    centres = {plan: own[1].rate for plan, own in final.items()}
    assert centres == pytest.approx({DEFAULT: 100, BEST: 150}, rel=0.05)


def test_a_better_plan_is_adopted_by_the_windows_of_the_final(whole):
    found = {plan: whole.peaks[plan].value for plan in (DEFAULT, BEST)}
    assert found == pytest.approx({DEFAULT: 100, BEST: 150}, rel=0.05)
    assert (whole.served, whole.ratio.low > 1.3, whole.repeats) == (BEST, True, 6)
    assert {*whole.quoted[BEST]["block"]} == {"final-1", "final-2"}


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_of_equal_plans_the_default_stays(seed):
    result = show_race(found := race(given({}, rest=100.0), seed=seed), HOST)
    assert (found.served, result.passed) == (DEFAULT, True)
    assert "the default is right" in result.verdicts[0].why


@pytest.mark.parametrize("better", [INT8, LARGER, WIDER])
def test_the_best_of_all_is_found_in_whatever_it_differs(better):
    assert race(given({better: 130.0, BEST: 105.0})).served == better


def test_the_same_function_makes_the_page_of_kept_blocks_and_measures_nothing(tmp_path):
    fresh = experiment.run(bench := Simulated(make_asked(), given({BEST: 150.0})))
    kept = start_result("tune", "tune-resnet50", bench.asked, tmp_path)
    for block in bench.blocks.values():
        with pytest.raises(NotMeasuredError):
            experiment.run(Bench(kept))
        Bench(kept)._keep(block, [(rows, []) for one in block.series for rows in one.rows])
    again, kept = experiment.run(Bench(read_result(kept.folder))), replace(kept, host={**kept.host, **HOST})
    page = render_markdown(again, kept)
    assert page == render_markdown(fresh, kept)
    assert (again.valid, again.passed) == (True, True)
    words = ("dropped after round 1", "dropped after round 2", "adopted", "replaced")
    assert all(word in page for word in (LARGER, WIDER, INT8, BEST, *words))


def spoil(plan, when="round-1", window=None, rejected="", **facts):
    """What is known of a plan, or of its windows, in a block."""

    def change(block):
        others = [one for one in block.series if one.server != plan]
        if block.name != when or rejected:
            series, told = (others, {plan: rejected}) if block.name == when else (block.series, {})
            return replace(block, series=tuple(series), rejected=told)
        return replace(block, series=tuple(one if one in others else spoil_one(one) for one in block.series))

    def spoil_one(one):
        windows = tuple(replace(each, **(window or {})) for each in one.windows)
        return replace(one, facts=replace(one.facts, **facts), windows=windows)

    return change


DIED, BUSY = {"pids_after": (2,)}, {"window": {"generator_cores": (0.95,)}}
REJECTED = {"rejected": "BATCH is too large"}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (DIED, "INVALID: a worker died"),
        ({"verify_after": {"good": False, "findings": []}}, "INVALID: verify failed after"),
        ({"window": {"answers": replace(RIGHT, wrong=1)}}, "INVALID: 1 of 100 answers are wrong"),
        (REJECTED, "rejected: BATCH is too large"),
        ({"when": "final-1", **DIED}, "INVALID: a worker died"),
    ],
)
def test_a_plan_that_is_bad_is_told_and_cannot_win(how, why):
    found = race(given({BEST: 150.0, LARGER: 130.0}), spoil(BEST, **how))
    assert (found.served, BEST in found.peaks, BEST in loads_of(found.blocks[-1])) == (LARGER, False, False)
    result = show_race(found, HOST)
    assert result.valid
    assert result.tables[0].frame.set_index("plan").loc[BEST, "verdict"].startswith(why)


@pytest.mark.parametrize(
    ("how", "memory_mib", "blocks", "why"),
    [
        ({"when": "start", **REJECTED}, 9000, 1, "cannot be served here: rejected: BATCH is too large"),
        ({"when": "start", **DIED}, 9000, 1, "cannot be measured here: INVALID"),
        (DIED, 9000, 2, "the default plan is INVALID: a worker died"),
        (BUSY, 9000, 2, "the machine was not quiet"),
        ({}, 1000, 1, "two servers must be up together: got 1000 MiB"),
    ],
)
def test_without_a_default_or_another_there_is_no_figure(how, memory_mib, blocks, why):
    found = race(given({BEST: 150.0}), spoil(DEFAULT, **how), memory_mib=memory_mib)
    (verdict,) = show_race(found, HOST).verdicts
    assert (len(found.blocks), verdict.passed, why in verdict.why) == (blocks, False, True)


def test_a_busy_generator_costs_windows_and_no_plan():
    found = race(given({BEST: 150.0}), spoil(BEST, "final-1", **BUSY))
    assert (names(found), found.out) == ([*WHOLE, "final-3"], {})
    assert (found.repeats, found.served) == (6, BEST)


@pytest.mark.parametrize(
    ("how", "held"), [({"minutes": 9}, 2), ({"memory_mib": 3100}, 2), ({"memory_mib": 2100}, 1)]
)
def test_what_budget_or_memory_have_no_room_for_is_told(how, held):
    found = race(given({}), **how)
    assert len(loads_of(found.blocks[1])) == 1 + held
    assert (
        sum("not measured" in word for word in show_race(found, HOST).tables[0].frame["verdict"]) == 4 - held
    )


@pytest.mark.parametrize(("other", "finals"), [(150.0, 2), (90.0, 1)])
def test_beyond_the_budget_the_final_is_held_again_only_where_a_candidate_seems_better(other, finals):
    """No plan is adopted by three repeats."""
    found = race(given({INT8: other}), minutes=5)
    assert names(found) == ["start", "round-1", *WHOLE[3 : 3 + finals]]
    early = experiment.Race(found.asked, found.blocks[:4][: 4 if finals == 1 else -1])
    assert (early.seems_better, early.repeats, early.served) == (finals == 2, 3, DEFAULT)
    assert (found.served == INT8) is (finals == 2)


def test_a_default_that_keeps_the_limit_at_no_rate_is_beaten_by_a_plan_that_does():
    """Its closed loop is fast all the same."""
    found = race(lambda plan, load: 100.0 if plan == BEST or not load.is_open else 20.0)
    assert (found.peaks[DEFAULT].boundary, found.served) == (NONE_KEPT, BEST)
    assert "at least" in show_race(found, HOST).verdicts[1].why


def test_of_a_mix_each_model_must_keep_the_limit_and_failed_requests_do_not():
    found = race(given({"w2x1-b8-b16": 150.0}, rest=90.0), shares=MIX)
    assert (found.what, found.served) == ("30% bert, 70% resnet50", "w2x1-b8-b16")
    series = found.blocks[1].series[0]
    assert series.load.shares == MIX
    assert series.load.duration_s == pytest.approx(1000 / 0.3 / series.load.rate, rel=0.01)
    rows, window = series.rows[0], series.windows[0]
    for bad in (
        rows.assign(ended=rows["ended"] + rows["payload"]),
        rows.assign(status=200 + 303 * rows["payload"]),
    ):
        first, second = experiment.split_latencies(bad, window, [*BOTH])
        assert (np.median(first) < 0.2, second.min() > 1) == (True, True)
        (trial,) = experiment.list_trials("round-1", replace(series, rows=(bad,)), [*BOTH])
        assert dict(zip(peak.COLUMNS, trial, strict=True))["late"] == 1


def test_the_candidates_are_the_defaults_neighbours():
    default = Candidate(workers=2, cores_per_worker=2, batch={MODEL: 8})

    def name(*how, **more):
        return [one.name for one in list_neighbours(*how, **more)]

    found = name(default, {MODEL: SIZES}, free_layout=True)
    assert found == ["w2x2-b4", "w2x2-b16", "w1x4-b8", "w4x1-b8"]
    assert name(default, {MODEL: range(5, 16)}, free_layout=False) == []
    both = replace(default, workers=1, cores_per_worker=1, batch={"bert": 3, MODEL: 8})
    found = name(both, {"bert": range(1, 17), MODEL: SIZES}, free_layout=True)
    assert found == ["w1x1-b1-b8", "w1x1-b6-b8", "w1x1-b3-b4", "w1x1-b3-b16"]
    words = "BACKEND=ipex PRECISION=int8 WORKERS=2 CORES_PER_WORKER=2 BATCH=resnet50=8"
    assert replace(default, variant="ipex int8").arguments == words.split()


def see(rate, late, repeat=0):
    return ("kit", "final-1", f"final-1 {repeat}", rate, rate, 200.0, late)


@pytest.mark.parametrize(
    ("windows", "value", "boundary"),
    [
        # p99 allows 1 %: on the line of logarithms between the two rates about it.
        ([(90, 0.001), (100, 0.005), (110, 0.02), (120, 0.4)], math.sqrt(100 * 110), WITHIN),
        # No late request at all counts as a twentieth of what is allowed.
        ([(100, 0.0), (110, 0.2)], math.sqrt(100 * 110), WITHIN),
        # Windows of one rate are averaged, as one long window would be.
        ([(100, 0.0), (100, 0.01), (110, 0.01), (110, 0.03)], math.sqrt(100 * 110), WITHIN),
        # One unlucky window below kept ones is smoothed, not believed.
        ([(90, 0.001), (95, 0.014), (100, 0.0), (105, 0.001), (110, 0.02)], 107.4, WITHIN),
        ([(90, 0.0), (100, 0.009)], 100, ALL_KEPT),
        ([(90, 0.02), (100, 0.5)], 90, NONE_KEPT),
    ],
)
def test_the_peak_is_where_the_fit_reaches_what_is_allowed(windows, value, boundary):
    found = peak.find_peak(peak.make_trials([see(*one) for one in windows]), ALLOWED)
    assert found == (pytest.approx(value, rel=0.005), boundary, None)


def draw_repeats(scale, seed):
    """Late shares grow with a high power of the rate, and repeats differ by some percent; the peak is 100."""
    slow = np.exp(np.random.default_rng(seed).uniform(-0.05, 0.05, 6))
    usual = 0.01 / np.mean(np.exp(np.linspace(-0.05, 0.05, 99)) ** 20)
    return peak.make_trials(
        see(100 * share * scale, min(1.0, usual * (share * factor) ** 20), repeat)
        for repeat, factor in enumerate(slow)
        for share in (0.93, 1.0, 1.07)
    )


@pytest.mark.parametrize("truth", [1.0, 1.5])
def test_intervals_hold_the_truth_and_equal_plans_show_no_gain(truth):
    pairs = [(draw_repeats(1.0, seed), draw_repeats(truth, 1000 + seed)) for seed in range(20)]
    own = [peak.find_peak(base, ALLOWED).interval for base, _ in pairs]
    ratios = [peak.compare_peaks(base, other, ALLOWED) for base, other in pairs]
    assert sum(one.low <= 100 <= one.high for one in own) >= 18
    assert sum(one.low <= truth <= one.high for one in ratios) >= 18
    assert all(one.high / one.low < 1.25 for one in (*own, *ratios))
    assert sum(one.low > LEAST_GAIN for one in ratios) == (0 if truth == 1 else 20)
    few = pairs[0][0][pairs[0][0]["group"] < "final-1 2"]
    assert peak.compare_peaks(few, pairs[0][1], ALLOWED) is None
