"""A Hugging Face folder is answered as transformers' pipeline answers it, or rejected at build by name."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification, pipeline

from handlers.definition import read_folder
from handlers.text_classifier import TextClassifier
from models.build import build_archive
from models.errors import BuildError, InputError
from tests.conftest import TINY_TEXT, from_path, with_int8, write_definition
from tests.handlers.context import FakeContext
from tests.models import folders
from tests.models.folders import TEXTS, edit, make_bert, make_bert_tokenizer, save

LENGTHS = {"token_lengths": [16, 64, 512], "row_tokens": 64, "tokens_per_run": 128}
DEFINITION = {**TINY_TEXT, "architecture_options": {}, "options": {**TINY_TEXT["options"], **LENGTHS}}


def build(tmp_path: Path, folder: Path, raw: dict = DEFINITION, **asked: str) -> Path:
    """The folder as the worker finds it, unpacked."""
    definition, weights = write_definition(tmp_path / "definitions", raw), from_path(folder)
    build_archive(definition, weights, store=tmp_path, workspaces=tmp_path / "work", **asked)
    with zipfile.ZipFile(tmp_path / "tiny_text.mar") as packed:
        packed.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def ask(archive: Path, texts: list[str]) -> list[dict]:
    handler = TextClassifier()
    handler.initialize(FakeContext(archive))
    return [
        json.loads(one)
        for one in handler.handle([{"body": {"text": text}} for text in texts], FakeContext(archive))
    ]


def ask_transformers(folder: Path, texts: list[str], **tokenizing) -> list[dict[str, float]]:
    classify = pipeline(
        "text-classification", model=str(folder), top_k=None, device="cpu", dtype=torch.float32
    )
    answers = [classify([text], truncation=True, **tokenizing)[0] for text in texts]
    return [{one["label"]: one["score"] for one in answer} for answer in answers]


def make_half(folder):
    make_bert(folder)
    model = BertForSequenceClassification.from_pretrained(folder).half()
    return save(folder, model, make_bert_tokenizer(folder))


def make_sharded(folder):
    make_bert(folder)
    model = BertForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    save(folder, model, make_bert_tokenizer(folder), max_shard_size="40KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def with_tokenizer(**options):
    return lambda folder: make_bert(folder, tokenizer=make_bert_tokenizer(folder, **options))


def make_with_added_token(folder):
    tokenizer = make_bert_tokenizer(folder)
    tokenizer.add_tokens(["cold food"])
    return make_bert(folder, tokenizer=tokenizer)


KINDS = {
    "plain": make_bert,
    "three classes": lambda folder: make_bert(folder, ["a", "b", "c"]),
    "yes or no": lambda folder: make_bert(folder, ["yes"]),
    "regression": lambda folder: make_bert(folder, ["stars"], problem_type="regression"),
    "two values": lambda folder: make_bert(folder, ["joy", "anger"], problem_type="regression"),
    "multi-label": lambda folder: make_bert(
        folder, ["toxic", "threat", "insult"], problem_type="multi_label_classification"
    ),
    "cut at the left": with_tokenizer(truncation_side="left"),
    "special tokens as text": with_tokenizer(split_special_tokens=True),
    "trained with 40 tokens": with_tokenizer(model_max_length=40),
    "250 positions": lambda folder: make_bert(folder, max_position_embeddings=250),
    "cased": with_tokenizer(do_lower_case=False),
    "an added token": make_with_added_token,
    "RoBERTa, 510 positions": folders.make_roberta,
    "DistilBERT": folders.make_distilbert,
    "half precision": make_half,
    "sharded": make_sharded,
}
MOST_TOKENS = {"250 positions": 250, "RoBERTa, 510 positions": 510, "trained with 40 tokens": 40}
"""What a text is cut at where that is not 512."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_answered_as_transformers_pipeline_answers_it(tmp_path, kind):
    folder = KINDS[kind](tmp_path / "folder")
    longest = MOST_TOKENS.get(kind, 512)
    expected = ask_transformers(folder, TEXTS, max_length=longest)
    got = ask(build(tmp_path, folder), TEXTS)
    for answer, wanted in zip(got, expected, strict=True):
        scores = answer["scores"] if "scores" in answer else answer["probabilities"]
        assert scores == pytest.approx(wanted, abs=2e-4)
        if kind == "multi-label":
            assert answer["labels"] == [name for name, p in answer["probabilities"].items() if p >= 0.5]
    assert set(got[0]) == {"scores"} or kind not in ("regression", "two values")
    assert got[-1]["truncated"]["tokens_used"] == longest
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)  # else all of this would prove nothing


@pytest.mark.parametrize("kind", ["regression", "multi-label"])
def test_int8_of_outputs_that_are_no_choice_is_validated_by_them(tmp_path, kind):
    folder = KINDS[kind](tmp_path / "folder")
    archive = build(tmp_path, folder, with_int8(DEFINITION, agreement=0.8), precisions=["int8"])
    packed = read_folder(archive).variants["ipex int8"]
    figures = packed.accuracy
    assert 0.8 < figures["explained"] < 1
    assert (figures["agreement"] is None) == (kind == "regression")
    assert not packed.lost


def write_json(file, raw):
    file.write_text(json.dumps(raw))


def keep_sentencepiece_alone(folder):
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    (folder / "spm.model").write_bytes(b"\n\x0e")
    edit(folder / "tokenizer_config.json", tokenizer_class="DebertaV2Tokenizer")


def change_tokenizer(folder, change):
    raw = json.loads((folder / "tokenizer.json").read_text())
    change(raw)
    write_json(folder / "tokenizer.json", raw)
    edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def cut_by_chance(raw):
    plain = {"type": "BPE", "unk_token": "[UNK]", "vocab": raw["model"]["vocab"], "merges": []}
    raw["model"] = {**plain, "dropout": 0.1}


def number_types(raw):
    """As Funnel's and XLNet's tokenizers number a single text's ends."""
    for piece in raw["post_processor"]["single"]:
        next(iter(piece.values()))["type_id"] = 1


def lose_a_shard(folder):
    make_sharded(folder)
    sorted(folder.glob("model-*.safetensors"))[0].unlink()


PARAMETERS = {"text-classification": {"problem_type": "regression"}}
CONFIGS = [
    ({"architectures": ["BertForTokenClassification"]}, "architectures"),
    ({"architectures": ["BertModel"]}, "architectures"),
    ({"auto_map": {"AutoConfig": "mine.Config"}}, "auto_map"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
    ({"task_specific_params": PARAMETERS}, "task_specific_params"),
    ({"sentence_transformers": {"activation_fn": "mine.Softplus"}}, "activation function"),
    ({"label2id": {"positive": 0, "negative": 1}}, "label2id"),
]
REJECTED = [
    *((lambda f, changes=changes: edit(f / "config.json", **changes), name) for changes, name in CONFIGS),
    (lambda f: edit(f / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.T", None]}), "auto_map"),
    (lambda f: (f / "labels.txt").write_text("positive\nnegative\n"), "labels.txt"),
    (keep_sentencepiece_alone, "SentencePiece"),
    (lambda f: [(f / name).unlink() for name in ("tokenizer.json", "vocab.txt")], "no tokenizer"),
    (lambda f: write_json(f / "adapter_config.json", {"peft_type": "LORA"}), "adapter"),
    (lose_a_shard, "model-0"),
    (lambda f: change_tokenizer(f, cut_by_chance), "dropout"),
    (lambda f: change_tokenizer(f, number_types), "token_type_ids"),
]


@pytest.mark.parametrize(("change", "name"), REJECTED)
def test_what_is_not_served_is_rejected_by_name(tmp_path, change, name):
    folder = make_bert(tmp_path / "folder")
    change(folder)
    with pytest.raises((BuildError, InputError)) as caught:
        build(tmp_path, folder)
    assert name in str(caught.value)[: 200 + len(str(folder))]


def test_a_model_whose_answer_depends_on_padding_is_rejected(tmp_path):
    folder = folders.make_gpt2(tmp_path / "folder", pad_token_id=None)
    with pytest.raises(BuildError, match="padded texts"):
        build(tmp_path, folder)


@pytest.mark.parametrize("apart", [False, True])
def test_a_cross_encoder_is_read_by_its_own_activation_function(tmp_path, apart):
    """Which sentence-transformers 5.7 writes into a file of its own."""
    folder = KINDS["yes or no"](tmp_path / "folder")
    said = {"activation_fn": "torch.nn.modules.linear.Identity"}
    if apart:
        file = folder / "config_sentence_transformers.json"
        file.write_text(json.dumps({"model_type": "CrossEncoder", **said}))
    else:
        edit(folder / "config.json", sentence_transformers=said)
    model = BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        logit = model(**make_bert_tokenizer(tmp_path / "t")(TEXTS[0], return_tensors="pt")).logits.item()
    assert ask(build(tmp_path, folder), TEXTS[:1])[0]["scores"]["yes"] == pytest.approx(logit, abs=1e-4)
