"""Embeddings, entities and pairs of texts are answered as transformers itself answers them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    BertModel,
    RobertaConfig,
    RobertaModel,
    pipeline,
)

from handlers.definition import read_folder
from models.build import build_archive
from models.errors import BuildError
from models.handlers import load_handler
from models.new import write_model
from models.request import WeightsRequest
from tests.conftest import LENIENT, write_definition
from tests.handlers.context import FakeContext
from tests.models.folders import (
    SIZES,
    TEXTS,
    enliven,
    make_bert,
    make_bert_tokenizer,
    make_roberta_tokenizer,
    name_labels,
    save,
)

HIDDEN = {"hidden_size": 32, "intermediate_size": 64, **SIZES}
LENGTHS = {"token_lengths": [16, 64, 512], "row_tokens": 64, "tokens_per_run": 128}
SHORT = [*TEXTS[:4], "clean room", "the staff was bad", "food", "cold food no"]
"""More than fit into one row, none cut."""


def build(tmp_path: Path, folder: Path, *, name: str = "mine", precisions=("fp32",), **changes) -> Path:
    """As `make model FROM=folder` and a build make it; the archive, unpacked."""
    write_model(folder, name=name, folder=tmp_path / "models")
    import yaml

    raw = yaml.safe_load((tmp_path / "models" / name / "model.yaml").read_text())
    memory = {"worker_mib": 500, "request_mib": 160}
    raw |= {"memory": memory, "options": {**raw.get("options", {}), **LENGTHS}, **changes}
    definition = write_definition(tmp_path / "models", raw)
    build_archive(definition, WeightsRequest(source=""), store=tmp_path, precisions=precisions)
    with zipfile.ZipFile(tmp_path / f"{name}.mar") as packed:
        packed.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def ask(archive: Path, bodies: list) -> list:
    handler = load_handler(archive)
    handler.initialize(FakeContext(archive))
    answers = handler.handle([{"body": body} for body in bodies], FakeContext(archive))
    return [json.loads(answer) for answer in answers]


def make_encoder(
    folder: Path, *, family: str = "bert", pooling: str = "mean", normalize: bool = True
) -> Path:
    if family == "bert":
        tokenizer = make_bert_tokenizer(folder)
        model = BertModel(BertConfig(vocab_size=len(tokenizer), **HIDDEN), add_pooling_layer=False)
    else:
        tokenizer = make_roberta_tokenizer()
        model = RobertaModel(RobertaConfig(vocab_size=len(tokenizer), **HIDDEN))
    save(folder, enliven(model), tokenizer)
    types = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"path": f"{n}_{one}", "type": f"sentence_transformers.models.{one}"} for n, one in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


def embed_all(
    folder: Path, texts: Sequence[str], *, pooling: str, normalize: bool, longest: int = 512
) -> np.ndarray:
    """By transformers and the definition of the pooling, of each text alone; float32 (texts, hidden)."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    vectors = []
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=longest))[0][0]
        vector = hidden[0] if pooling == "cls" else hidden.mean(dim=0)
        vectors.append(vector / vector.norm() if normalize else vector)
    return torch.stack(vectors).numpy()


def embed(folder: Path, text: str, **how) -> list[float]:
    return embed_all(folder, [text], **how)[0].tolist()


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_embeddings_are_those_of_sentence_transformers(tmp_path, family, pooling, normalize):
    how = {"pooling": pooling, "normalize": normalize}
    folder = make_encoder(tmp_path / "folder", family=family, **how)
    archive = build(tmp_path, folder)
    assert "first_position" in read_folder(archive).model["packing"]
    got = ask(archive, [{"text": text} for text in SHORT])
    for answer, text in zip(got, SHORT, strict=True):
        assert answer["embedding"] == pytest.approx(embed(folder, text, **how), abs=2e-5)
    several = ask(archive, [{"text": SHORT[:3]}])[0]
    assert [one["embedding"] for one in several] == [
        pytest.approx(one["embedding"], abs=2e-5) for one in got[:3]
    ]


def test_int8_embeddings_are_validated_by_cosine_and_rank(tmp_path):
    folder = make_encoder(tmp_path / "folder")
    archive = build(tmp_path, folder, precisions=["fp32", "int8"], accuracy_gate={"cosine": 0.8, "rank": 0.5})
    variant = read_folder(archive).variants["ipex int8"]
    assert 0.8 < variant.accuracy["mean_cosine"] < 1
    assert not variant.lost


def test_a_prompt_that_nobody_would_put_before_texts_is_named(tmp_path):
    folder = make_encoder(tmp_path / "folder")
    (folder / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')
    with pytest.raises(BuildError, match="default_prompt_name is query"):
        build(tmp_path, folder)


def test_texts_are_cut_where_sentence_transformers_cuts_them(tmp_path):
    folder = make_encoder(tmp_path / "folder")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    (answer,) = ask(build(tmp_path, folder), [{"text": "good " * 50}])
    assert answer["truncated"]["tokens_used"] == 20


ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def make_tagger(folder: Path) -> Path:
    tokenizer = make_bert_tokenizer(folder)
    config = BertConfig(vocab_size=len(tokenizer), **HIDDEN, **name_labels(ENTITIES))
    return save(folder, enliven(BertForTokenClassification(config)), tokenizer)


def test_entities_are_those_of_transformers_pipeline(tmp_path):
    folder = make_tagger(tmp_path / "folder")
    tag = pipeline("token-classification", model=str(folder), aggregation_strategy="simple", device="cpu")
    got = ask(build(tmp_path, folder), [{"text": text} for text in SHORT])
    found = 0
    for answer, text in zip(got, SHORT, strict=True):
        wanted = tag(text)
        found += len(wanted)
        assert [(one["entity"], one["start"], one["end"]) for one in answer["entities"]] == [
            (one["entity_group"], one["start"], one["end"]) for one in wanted
        ]
        assert [one["score"] for one in answer["entities"]] == [
            pytest.approx(float(one["score"]), abs=2e-4) for one in wanted
        ]
        assert all(one["text"] == text[one["start"] : one["end"]] for one in answer["entities"])
    assert found > 5


def test_precisions_of_tokens_are_validated_token_by_token(tmp_path):
    folder = make_tagger(tmp_path / "folder")
    archive = build(tmp_path, folder, precisions=["fp32", "int8"], accuracy_gate=LENIENT)
    figures = read_folder(archive).variants["ipex int8"].accuracy
    assert figures["samples"] > 500
    assert figures["agreement"] > 0.5


PAIRS = [(text, other) for text, other in zip(SHORT, reversed(SHORT), strict=True)]


def test_pairs_are_answered_as_transformers_answers_them(tmp_path):
    folder = make_bert(tmp_path / "folder", ["entailment", "neutral", "contradiction"])
    archive = build(tmp_path, folder)
    assert read_folder(archive).model["token_types"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    got = ask(archive, [{"text": a, "text_pair": b} for a, b in PAIRS])
    swapped = ask(archive, [{"text": b, "text_pair": a} for a, b in PAIRS])
    for (first, second), answer in zip(PAIRS, got, strict=True):
        inputs = tokenizer(first, second, return_tensors="pt")
        with torch.no_grad():
            wanted = torch.softmax(model(**inputs).logits[0], 0).tolist()
        assert [*answer["probabilities"].values()] == pytest.approx(wanted, abs=2e-4)
    assert got != swapped


def test_a_pair_is_rejected_by_a_model_of_single_texts(tmp_path):
    archive = build(tmp_path, make_bert(tmp_path / "folder"))
    assert read_folder(archive).model["pairs"] is False
    (answer,) = ask(archive, [{"text": "a", "text_pair": "b"}])
    assert "text_pair" in json.dumps(answer)
