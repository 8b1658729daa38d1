"""Stock TorchServe as it comes is told nothing of a model; BERT's example answers in the kit's form."""

from __future__ import annotations

import json
import zipfile
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError
from loadtest.servers import stock_transformer
from loadtest.servers.stock import (
    BATCH_SIZE,
    TEXT_FILES,
    render_stock_properties,
    stock_server,
)

TEXTS = ["a good film", "the room was cold and the service slow"]


def render(folder, batch_size):
    lines = render_stock_properties(folder, 9000, "bert", batch_size).splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_as_it_comes_only_addresses_are_set_and_else_one_worker_and_its_batches(tmp_path):
    properties = render(tmp_path, None)
    told = {name for name in properties if "address" not in name and "port" not in name}
    assert told == {"model_store", "load_models", "disable_token_authorization"}
    assert properties["load_models"] == "bert.mar"
    model = json.loads(render(tmp_path, BATCH_SIZE)["models"])["bert"]["1.0"]
    assert (model["minWorkers"], model["maxWorkers"], model["batchSize"]) == (1, 1, 32)
    with pytest.raises(LoadTestError, match="stock TorchServe serves resnet50, densenet121, bert: got tiny"):
        stock_server("stock", "tiny", batch_size=1)


@pytest.fixture
def handler(tiny_text_archive, tmp_path, monkeypatch):
    """With the tiny archive's model, which knows fewer than 150 positions."""
    monkeypatch.setattr(stock_transformer, "MAX_LENGTH", 16)
    with zipfile.ZipFile(tiny_text_archive) as packed:
        for file in TEXT_FILES:
            packed.extract(file, tmp_path)
    made = stock_transformer.TransformerHandler()
    made.initialize(SimpleNamespace(system_properties={"model_dir": str(tmp_path)}))
    return made


def test_the_examples_handler_pads_to_one_length_and_answers_in_the_kits_form_in_order(handler):
    inputs = handler.preprocess([{"body": text.encode()} for text in (*TEXTS, "long " * 40)])
    assert tuple(inputs["input_ids"].shape) == (3, 16)
    assert inputs["attention_mask"].sum(dim=1).tolist()[2] == 16
    requests = [{"body": TEXTS[0].encode()}, {"body": {"text": TEXTS[1]}}]
    both, *each = (
        handler.postprocess(handler.inference(handler.preprocess(some)))
        for some in (requests, requests[:1], requests[1:])
    )
    assert both[0]["probabilities"] != pytest.approx(both[1]["probabilities"], abs=1e-3)
    for one, (alone,) in zip(both, each, strict=True):
        assert one["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-3)
        assert sum(one["probabilities"].values()) == pytest.approx(1.0)
        assert one["probabilities"][one["label"]] == max(one["probabilities"].values())
