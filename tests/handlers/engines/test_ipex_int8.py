"""Recipe files: what the worker reads of them, and what leaving an operator out does to the arithmetic."""

from __future__ import annotations

import json

import pytest
import torch

from handlers.engines.engine import OutOfTimeError
from handlers.engines.ipex_int8 import recipes
from handlers.engines.ipex_int8.convert import (
    RECIPE_KEY,
    Recipe,
    choose_mapping,
    convert_with_recipe,
    prepare_quantization,
    read_recipe,
)
from handlers.engines.ipex_int8.quantiser import check_left
from handlers.engines.ipex_int8.ranking import rank_operators
from handlers.engines.ipex_int8.recipes import (
    OBSERVERS,
    PercentileObserver,
    choose_left,
    leave_operators,
    list_quantised,
    read_summary,
    render_recipe,
)
from handlers.shared.errors import LoadError
from models.gate.trials import time_beside

INT8 = Recipe(name="histogram", smooth_quant=False, bf16_operators=0)


class Two(torch.nn.Module):
    """Two Linear layers; the second sees one channel a thousand times as wide as the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)
        with torch.no_grad():
            self.first.weight[0] *= 1000
            self.second.weight[:, 0] /= 1000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


FIRST, SECOND = (" ", "0"), (" ", "2")
"""IPEX counts the operator between them too."""
INPUTS = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
EXAMPLE = (INPUTS[:2],)


def observe(path, observer: str) -> str:
    prepared = prepare_quantization(Two().eval(), EXAMPLE, OBSERVERS[observer]())
    with torch.no_grad():
        prepared(INPUTS)
    prepared.save_qconf_summary(qconf_summary=str(path))
    recipe = Recipe(name=observer, smooth_quant=observer == "smooth quant", bf16_operators=0)
    path.write_text(render_recipe(recipe, path.read_text()))
    return path.read_text()


@pytest.mark.parametrize(("wide", "highest"), [(True, 255), (False, 127)])
@pytest.mark.parametrize("observer", ["histogram", "min-max", "percentile"])
def test_activations_have_seven_bits_where_sums_would_saturate(monkeypatch, observer, wide, highest):
    monkeypatch.setattr(recipes, "has_wide_sums", lambda: wide)
    activation = OBSERVERS[observer]().global_qconfig.activation()
    assert (activation.quant_min, activation.quant_max) == (0, highest)


def measure_error(path) -> float:
    """Of a frozen trace, as a worker runs it."""
    converted = convert_with_recipe(Two().eval(), EXAMPLE, path)
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(converted, EXAMPLE, check_trace=False))
        for _ in range(2):
            got = frozen(INPUTS)
        exact = Two()(INPUTS)
    return float((got - exact).norm() / exact.norm())


@pytest.mark.parametrize("observer", OBSERVERS)
def test_each_observers_recipe_loads_as_it_is_written(tmp_path, observer):
    path = tmp_path / "int8.json"
    text = observe(path, observer)
    assert read_recipe(path).name == observer
    assert list_quantised(read_summary(text)) == [FIRST, SECOND]
    assert "PercentileObserver" not in text
    assert " at 0x" not in text
    assert 0 < measure_error(path) < 2


def test_smooth_quant_takes_what_ruins_every_observer(tmp_path):
    errors = {}
    for observer in OBSERVERS:
        observe(tmp_path / "int8.json", observer)
        errors[observer] = measure_error(tmp_path / "int8.json")
    assert errors.pop("smooth quant") < 0.1 * min(errors.values())


def test_ipex_must_be_told_of_smooth_quant(tmp_path):
    # Unless it prepares the model for it, it cannot run what it loads: so the file's own entry.
    path = tmp_path / "int8.json"
    text = json.loads(observe(path, "smooth quant"))
    text[RECIPE_KEY]["smooth_quant"] = False
    path.write_text(json.dumps(text))
    with pytest.raises(AttributeError, match="'dict' object"):
        measure_error(path)


def test_operators_that_are_left_out_compute_in_bf16(tmp_path):
    path = tmp_path / "int8.json"
    summary = read_summary(observe(path, "min-max"))
    bad = measure_error(path)
    left = leave_operators(summary, [SECOND])
    path.write_text(render_recipe(Recipe(name="one", smooth_quant=False, bf16_operators=1), json.dumps(left)))
    assert list_quantised(left) == [FIRST]
    converted = convert_with_recipe(Two().eval(), EXAMPLE, path)
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(converted, EXAMPLE, check_trace=False))
        for _ in range(2):
            frozen(INPUTS)
        graph = str(torch.jit.last_executed_optimized_graph())
    assert "BFloat16" in graph
    assert measure_error(path) < 0.3 * bad
    # With nothing left in INT8 only BF16's rounding remains.
    none = leave_operators(summary, list_quantised(summary))
    path.write_text(render_recipe(Recipe(name="all", smooth_quant=False, bf16_operators=2), json.dumps(none)))
    assert measure_error(path) < 0.01


def test_the_operator_that_is_to_blame_ranks_first(tmp_path):
    path = tmp_path / "int8.json"
    operators = list_quantised(read_summary(observe(path, "min-max")))
    converted = convert_with_recipe(Two().eval(), EXAMPLE, path)
    errors = rank_operators(converted, operators, [(INPUTS,)], deadline=float("inf"))
    assert errors[SECOND] > 10 * errors[FIRST] > 0
    # Each was switched off again, its inputs and its weights: nothing is quantised any more.
    with torch.no_grad():
        assert torch.allclose(converted(INPUTS), Two()(INPUTS), rtol=1e-4, atol=1e-4)


def test_a_ranking_that_would_be_late_is_not_made(tmp_path):
    path = tmp_path / "int8.json"
    operators = list_quantised(read_summary(observe(path, "min-max")))
    converted = convert_with_recipe(Two().eval(), EXAMPLE, path)
    clock = iter(range(0, 100, 10)).__next__
    with pytest.raises(OutOfTimeError):
        rank_operators(converted, operators, [(INPUTS,)], deadline=20, clock=clock)


@pytest.mark.parametrize(
    ("share", "left"), [(0.5, ["b"]), (0.61, ["b", "a"]), (0.95, ["b", "a", "d"]), (1e-9, ["b"])]
)
def test_the_fewest_operators_with_a_share_of_the_error_are_left(share, left):
    errors = {("m", "a"): 3.0, ("m", "b"): 6.0, ("m", "c"): 0.1, ("m", "d"): 0.9}
    assert choose_left(errors, share) == [("m", name) for name in left]


def test_the_percentile_observer_cuts_what_is_rare():
    observer = PercentileObserver(dtype=torch.quint8, reduce_range=False)
    values = torch.linspace(-1, 1, 100_001)
    values[7], values[8] = 1000.0, -1000.0
    observer(values)
    observer(0.5 * values)
    assert float(observer.max_val) == pytest.approx(1, abs=1e-3)
    assert float(observer.min_val) == pytest.approx(-1, abs=1e-3)


def test_a_file_without_the_kits_entry_is_refused(tmp_path):
    path = tmp_path / "int8.json"
    with pytest.raises(LoadError, match=r"the archive holds no int8\.json"):
        read_recipe(path)
    path.write_text("{}")
    with pytest.raises(LoadError, match=r"int8\.json does not fit this handler: KeyError\('cpu-kit'\)"):
        read_recipe(path)
    assert choose_mapping(INT8) is not choose_mapping(Recipe(name="s", smooth_quant=True, bf16_operators=0))


def test_recipes_are_timed_in_turn():
    now, calls = [0.0], []

    def make(name: str, seconds: float):
        def run(inputs: tuple) -> None:
            calls.append(name)
            now[0] += seconds

        return run

    ratio = time_beside(make("new", 3.0), make("first", 2.0), [(), ()], clock=lambda: now[0])
    assert ratio == 1.5
    assert calls[:4] == ["new", "first", "new", "first"]


@pytest.mark.parametrize(("left", "operators"), [(0, 30), (15, 30)])
def test_up_to_half_of_the_operators_may_be_left(left, operators):
    check_left(left, operators)


def test_a_recipe_that_is_int8_by_name_only_is_not_taken():
    with pytest.raises(LoadError, match="16 of 30 operators would be in BF16, at most 50% may be"):
        check_left(16, 30)
