"""Model definitions: what planning reads of them, and how a wrong one is named."""

from __future__ import annotations

import pytest

pytest.importorskip("yaml")

from config.definitions import list_models, read_definitions
from config.errors import ConfigError
from handlers.shared.shapes import ShapeGrid
from tests.config.planning import HERE

MODELS = HERE.parents[1] / "models"

GOOD = {
    "name": "m",
    "kind": "other",
    "batch_sizes": "[8, 1]",
    "worker_memory_mib": "{fp32: 900}",
    "request_memory_mib": "300",
    "precisions": "{fp32: {}}",
    "default_build": "true",
}


def write_model(folder, name="m", **changes):
    (folder / name).mkdir()
    fields = {**GOOD, "name": name, **changes}
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value is not None)
    (folder / name / "model.yaml").write_text(text)


def test_definition(tmp_path):
    write_model(tmp_path)
    (model,) = read_definitions(tmp_path)
    assert (model.name, model.batch_sizes, model.precisions) == ("m", (1, 8), ("fp32",))
    assert (model.worker_memory_mib, model.request_memory_mib) == ({"fp32": 900}, 300)


def test_shapes_of_texts(tmp_path):
    write_model(tmp_path, "images", model="{top_k: 5}")
    write_model(tmp_path, "texts", model="{token_lengths: [512, 16], tokens_per_run: 128}")
    images, texts = read_definitions(tmp_path)
    assert (images.token_lengths, images.tokens_per_run, images.count_shapes()) == ((), None, 2)
    assert (texts.token_lengths, texts.tokens_per_run, texts.count_shapes()) == ((16, 512), 128, 3)


@pytest.mark.parametrize("name", list_models(MODELS))
def test_as_many_shapes_are_counted_as_the_handler_warms(name):
    (model,) = read_definitions(MODELS, [name])
    lengths = model.token_lengths or (0,)
    grid = ShapeGrid(batch_sizes=model.batch_sizes, lengths=lengths, tokens_per_run=model.tokens_per_run)
    assert model.count_shapes() == len(grid.list_shapes())


def test_named_models_and_defaults(tmp_path):
    write_model(tmp_path, "b")
    write_model(tmp_path, "a")
    write_model(tmp_path, "extra", default_build="false")
    assert [model.name for model in read_definitions(tmp_path)] == ["a", "b"]
    assert [model.name for model in read_definitions(tmp_path, ["extra", "a", "a"])] == ["a", "extra"]
    with pytest.raises(ConfigError, match="MODELS must be one of a, b, extra: got resnet"):
        read_definitions(tmp_path, ["resnet"])


@pytest.mark.parametrize(
    ("field", "value", "must"),
    [
        ("batch_sizes", None, "is missing"),
        ("worker_memory_mib", None, "is missing"),
        ("batch_sizes", "8", "must be a list that is not empty: got 8"),
        ("batch_sizes", "[]", "must be a list that is not empty"),
        ("batch_sizes", "[0, 8]", "must be whole numbers above 0"),
        ("worker_memory_mib", "{fp32: big}", ".fp32 must be a whole number above 0: got 'big'"),
        ("request_memory_mib", None, "is missing"),
        ("request_memory_mib", "-1", "must be a whole number above 0: got -1"),
        ("model", "{token_lengths: [a]}", ".token_lengths must be whole numbers above 0"),
        ("model", "{tokens_per_run: 0}", ".tokens_per_run must be a whole number above 0: got 0"),
        ("default_build", "maybe", "must be true or false: got 'maybe'"),
    ],
)
def test_wrong_field_is_named_with_its_file(tmp_path, field, value, must):
    write_model(tmp_path, **{field: value})
    with pytest.raises(ConfigError, match=rf"{field} ?{must}.*m/model\.yaml"):
        read_definitions(tmp_path)


def test_name_is_the_folders(tmp_path):
    write_model(tmp_path)
    (tmp_path / "m").rename(tmp_path / "n")
    with pytest.raises(ConfigError, match=r"name must be its folder's, n: got m"):
        read_definitions(tmp_path)


def test_no_models(tmp_path):
    with pytest.raises(ConfigError, match=r"no model below .*: a model is a folder with model.yaml"):
        read_definitions(tmp_path)
