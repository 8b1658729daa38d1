"""Recipe files: what the worker reads of them, and what becomes of the arithmetic."""

from __future__ import annotations

import pytest
import torch

from handlers.backends import ipex_int8
from handlers.backends.ipex_int8 import (
    HISTOGRAM,
    MIN_MAX,
    SMOOTH,
    Recipe,
    convert_with_recipe,
    list_recipes,
    make_mapping,
    prepare_quantization,
    read_recipe,
    render_recipe,
)
from handlers.shared.errors import LoadError


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


INPUTS = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
EXAMPLE = (INPUTS[:2],)


def observe(path, recipe: Recipe) -> str:
    prepared = prepare_quantization(Two().eval(), EXAMPLE, make_mapping(recipe))
    with torch.no_grad():
        prepared(INPUTS)
    prepared.save_qconf_summary(qconf_summary=str(path))
    path.write_text(render_recipe(recipe, path.read_text()))
    return path.read_text()


@pytest.mark.parametrize(("wide", "highest"), [(True, 255), (False, 127)])
@pytest.mark.parametrize("recipe", [HISTOGRAM, MIN_MAX])
def test_activations_have_seven_bits_where_sums_would_saturate(monkeypatch, recipe, wide, highest):
    monkeypatch.setattr(ipex_int8, "has_wide_sums", lambda: wide)
    activation = make_mapping(recipe).global_qconfig.activation()
    assert (activation.quant_min, activation.quant_max) == (0, highest)


@pytest.mark.parametrize(
    ("convolutional", "wide", "second"),
    [(True, True, MIN_MAX), (False, True, SMOOTH), (False, False, MIN_MAX)],
)
def test_two_recipes_are_tried(monkeypatch, convolutional, wide, second):
    """IPEX smooths no convolutions, and its own takes all eight bits."""
    monkeypatch.setattr(ipex_int8, "has_flags", lambda _: wide)
    assert list_recipes(convolutional=convolutional) == (HISTOGRAM, second)


def measure_error(path) -> float:
    """Of a frozen trace, as a worker runs it."""
    converted = convert_with_recipe(Two().eval(), EXAMPLE, path)
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(converted, EXAMPLE, check_trace=False))
        for _ in range(2):
            got = frozen(INPUTS)
        exact = Two()(INPUTS)
    return float((got - exact).norm() / exact.norm())


@pytest.mark.parametrize("recipe", [HISTOGRAM, MIN_MAX, SMOOTH])
def test_each_recipe_loads_as_it_is_written(tmp_path, recipe):
    path = tmp_path / "int8.json"
    text = observe(path, recipe)
    assert read_recipe(path) == recipe
    assert " at 0x" not in text
    assert 0 < measure_error(path) < 2


def test_smooth_quant_takes_what_ruins_every_observer(tmp_path):
    errors = {}
    for recipe in (HISTOGRAM, MIN_MAX, SMOOTH):
        observe(tmp_path / "int8.json", recipe)
        errors[recipe.name] = measure_error(tmp_path / "int8.json")
    assert errors.pop("smooth quant") < 0.1 * min(errors.values())


def test_a_file_without_the_kits_entry_is_rejected(tmp_path):
    path = tmp_path / "int8.json"
    with pytest.raises(LoadError, match=r"the archive holds no int8\.json"):
        read_recipe(path)
    path.write_text("{}")
    with pytest.raises(LoadError, match=r"int8\.json does not fit this handler: KeyError\('cpu-kit'\)"):
        read_recipe(path)
