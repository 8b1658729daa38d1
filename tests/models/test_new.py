"""`make model FROM=…`: what a folder is served by, and what is said where it cannot be."""

from __future__ import annotations

import json

import pytest
import torch

from models.__main__ import main
from models.definition import read_definition
from models.errors import InputError
from models.new import SHIPPED, recognise, write_model
from models.options import OPTIONS


def make_folder(folder, architecture, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **fields}))
    (folder / "model.safetensors").touch()
    return folder


def make_sentence_transformer(folder, pooling="pooling_mode_mean_tokens", last="Normalize"):
    make_folder(folder, "BertModel")
    types = ["Transformer", "Pooling", last]
    paths = ["", "1_Pooling", "2_Last"]
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{name}"}
        for path, name in zip(paths, types, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, pooling: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, **modes}))
    return folder


def test_the_handlers_are_those_that_model_yaml_may_name():
    assert set(SHIPPED) == set(OPTIONS)


@pytest.mark.parametrize(
    ("architecture", "fields", "handler", "options"),
    [
        ("BertForSequenceClassification", {"id2label": {"0": "a", "1": "b"}}, "text_classifier", {}),
        ("RobertaForSequenceClassification", {"id2label": {"0": "ENTAILMENT", "1": "no"}}, "text_classifier",
         {"pairs": True}),
        ("BertForSequenceClassification", {"sentence_transformers": {"version": "5"}}, "text_classifier",
         {"pairs": True}),
        ("BertForTokenClassification", {"id2label": {"0": "O", "1": "B-PER"}}, "token_classifier", {}),
        ("BertModel", {}, "text_embeddings", {"pooling": "mean", "normalize": True}),
    ],
)  # fmt: skip
def test_a_folder_says_its_task(tmp_path, architecture, fields, handler, options):
    found = recognise(make_folder(tmp_path / "folder", architecture, **fields))
    assert (found.handler, found.options) == (handler, options)


def test_a_cross_encoder_says_in_a_file_of_its_own_that_it_takes_pairs(tmp_path):
    folder = make_folder(tmp_path / "reranker", "BertForSequenceClassification", id2label={"0": "LABEL_0"})
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    write_model(folder, folder=tmp_path / "models")
    definition = read_definition("reranker", tmp_path / "models")
    assert definition.options.pairs
    assert set(definition.example) == {"text", "text_pair"}


@pytest.mark.parametrize(
    ("pooling", "last", "options"),
    [
        ("pooling_mode_mean_tokens", "Normalize", {"pooling": "mean", "normalize": True}),
        ("pooling_mode_cls_token", "Pooling", None),
        ("pooling_mode_max_tokens", "Normalize", None),
        ("pooling_mode_mean_tokens", "Dense", None),
    ],
)
def test_embeddings_are_pooled_as_sentence_transformers_says(tmp_path, pooling, last, options):
    folder = make_sentence_transformer(tmp_path / "folder", pooling, last)
    if options is None and last != "Pooling":
        with pytest.raises(
            InputError, match=r"served are Transformer, Pooling \(mean or CLS\) and Normalize"
        ):
            recognise(folder)
    elif options is not None:
        assert recognise(folder).options == options


def test_the_four_lines_are_written_once(tmp_path):
    source = make_folder(tmp_path / "ticket router", "BertForSequenceClassification")
    lines = write_model(source, folder=tmp_path / "models")
    assert lines[-1] == "next: make serve MODELS=ticket-router"
    definition = read_definition("ticket-router", tmp_path / "models")
    assert (definition.handler, definition.local_weights) == ("text_classifier", source)
    with pytest.raises(InputError, match=r"is there already; edit its model\.yaml, or give another --name"):
        write_model(source, folder=tmp_path / "models")
    write_model(source, name="other", folder=tmp_path / "models")


def test_a_state_dict_needs_its_architecture(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "net.pth")
    with pytest.raises(InputError, match="add --handler image_classifier --arch"):
        write_model(tmp_path / "net.pth", folder=tmp_path / "models")
    with pytest.raises(InputError, match="needs --arch"):
        write_model(tmp_path / "net.pth", handler="image_classifier", folder=tmp_path / "models")
    given = {"handler": "image_classifier", "architecture": "efficientnet_b0"}
    write_model(tmp_path / "net.pth", **given, folder=tmp_path / "models")
    assert read_definition("net", tmp_path / "models").architecture == "efficientnet_b0"


@pytest.mark.parametrize(
    ("architecture", "what"),
    [("BertForQuestionAnswering", "served are ForSequenceClassification"), ("", "architectures is missing")],
)
def test_other_tasks_are_sent_to_the_page_on_handlers(tmp_path, architecture, what):
    with pytest.raises(InputError, match=f"(?s){what}.*docs/models.md"):
        recognise(make_folder(tmp_path / "folder", architecture))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["FROM=/nowhere"], "does not exist"),
        ([], "got nothing"),
        (["FROM=models", "ARGS=--name ../x"], "--name must be"),
        (["FROM=models", "--handler", "magic"], "--handler must be one of"),
    ],
)
def test_wrong_values_are_exit_code_2(given, what, capsys):
    assert main(["new", *given]) == 2
    assert what in capsys.readouterr().err
