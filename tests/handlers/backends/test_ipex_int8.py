"""Recipe files: what the worker reads of them, and what leaving an operator out does to the arithmetic."""

from __future__ import annotations

import json

import pytest
import torch

from handlers.backends.ipex_int8 import recipes
from handlers.backends.ipex_int8.convert import (
    Recipe,
    choose_mapping,
    convert_with_recipe,
    prepare_quantization,
    read_recipe,
)
from handlers.backends.ipex_int8.ranking import rank_operators
from handlers.backends.ipex_int8.recipes import (
    OBSERVERS,
    leave_operators,
    list_quantised,
    read_summary,
    render_recipe,
)
from handlers.shared.errors import LoadError

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


def test_a_file_without_the_kits_entry_is_refused(tmp_path):
    path = tmp_path / "int8.json"
    with pytest.raises(LoadError, match=r"the archive holds no int8\.json"):
        read_recipe(path)
    path.write_text("{}")
    with pytest.raises(LoadError, match=r"int8\.json does not fit this handler: KeyError\('cpu-kit'\)"):
        read_recipe(path)
    assert choose_mapping(INT8) is not choose_mapping(Recipe(name="s", smooth_quant=True, bf16_operators=0))
