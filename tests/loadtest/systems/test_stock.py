"""Stock TorchServe as it comes is told nothing of a model; BERT's example answers in the kit's form."""

from __future__ import annotations

import json
import zipfile
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError
from loadtest.systems.stock import BATCH_SIZE, TEXT_FILES, render_stock_properties, stock

TEXTS = ["a good film", "the room was cold and the service slow"]


def render(tmp_path, batch_size):
    lines = render_stock_properties(tmp_path, 9000, "bert", batch_size).splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_as_it_comes_only_addresses_and_the_archive_are_set(tmp_path):
    properties = render(tmp_path, None)
    assert {name for name in properties if "address" not in name and "port" not in name} == {
        "model_store",
        "load_models",
    }
    assert properties["load_models"] == "bert.mar"


def test_the_baseline_of_the_targets_has_one_worker_and_batches(tmp_path):
    model = json.loads(render(tmp_path, BATCH_SIZE)["models"])["bert"]["1.0"]
    assert (model["minWorkers"], model["maxWorkers"], model["batchSize"]) == (1, 1, 32)


def test_a_model_without_a_baseline_is_said():
    with pytest.raises(LoadTestError, match="stock TorchServe serves resnet50, densenet121, bert: got tiny"):
        stock("stock", "tiny", batch_size=1)


@pytest.fixture
def handler(tiny_text_archive, tmp_path, monkeypatch):
    """With the tiny archive's model, which knows fewer than 150 positions."""
    from loadtest.systems import stock_transformer

    monkeypatch.setattr(stock_transformer, "MAX_LENGTH", 16)
    with zipfile.ZipFile(tiny_text_archive) as packed:
        for file in TEXT_FILES:
            packed.extract(file, tmp_path)
    made = stock_transformer.TransformerHandler()
    made.initialize(SimpleNamespace(system_properties={"model_dir": str(tmp_path)}))
    return made


def test_every_text_is_padded_or_cut_to_one_length(handler):
    inputs = handler.preprocess([{"body": text.encode()} for text in (*TEXTS, "long " * 40)])
    assert tuple(inputs["input_ids"].shape) == (3, 16)
    assert inputs["attention_mask"].sum(dim=1).tolist()[2] == 16


def test_the_answers_have_the_kits_form_in_order(handler):
    requests = [{"body": TEXTS[0].encode()}, {"body": {"text": TEXTS[1]}}]
    answers = handler.postprocess(handler.inference(handler.preprocess(requests)))
    alone = handler.postprocess(handler.inference(handler.preprocess(requests[:1])))
    assert answers[0]["probabilities"] == pytest.approx(alone[0]["probabilities"], abs=1e-5)
    assert all(sum(one["probabilities"].values()) == pytest.approx(1.0) for one in answers)
    assert all(one["probabilities"][one["label"]] == max(one["probabilities"].values()) for one in answers)
