"""A user's own weights: loaded without running code, labelled, and refused with the keys that do not fit."""

from __future__ import annotations

import json
import pickle
import zipfile

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.models import get_model
from torchvision.transforms._presets import ImageClassification
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    PreTrainedTokenizerFast,
)

from handlers.shared.steps import StepError
from models.__main__ import main
from models.build import build_archive, read_archive_definition
from models.errors import BuildError
from models.expected import _expected, answer_canary
from models.files import find_weights_file
from models.kinds.image import prepare as prepare_image
from models.kinds.text import prepare as prepare_text
from models.labels import read_labels
from models.request import WeightsRequest
from models.state import read_checkpoint
from tests.conftest import TINY_IMAGE, TINY_TEXT, write_definition


def from_path(path):
    return WeightsRequest(source="path", path=path)


@pytest.fixture
def image_definition(tmp_path):
    return write_definition(tmp_path / "models", TINY_IMAGE)


@pytest.fixture
def text_definition(tmp_path):
    return write_definition(tmp_path / "models", TINY_TEXT)


@pytest.fixture
def staging(tmp_path):
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


def make_resnet(classes):
    torch.manual_seed(1)
    return get_model("resnet18", weights=None, num_classes=classes)


@pytest.mark.parametrize("name", ["mine.pth", "mine.safetensors"])
def test_a_state_dict_with_its_labels_is_packed(tmp_path, image_definition, staging, name):
    folder = tmp_path / "user"
    folder.mkdir()
    save = save_file if name.endswith(".safetensors") else torch.save
    save(make_resnet(3).state_dict(), folder / name)
    (folder / "labels.txt").write_text("cat\ndog\nhorse\n")
    prepared = prepare_image(image_definition, from_path(folder / name), staging)
    assert prepared.weights.startswith(f"user ({name}, sha256:")
    assert json.loads((staging / "labels.json").read_text()) == ["cat", "dog", "horse"]


def test_the_packed_user_model_answers_as_the_user_model(tmp_path, image_definition):
    folder = tmp_path / "user"
    folder.mkdir()
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in make_resnet(3).state_dict().items()}}, folder / "a.pt"
    )
    (folder / "labels.json").write_text('["cat", "dog", "horse"]')
    build_archive(image_definition, from_path(folder), store=tmp_path)
    assert read_archive_definition(tmp_path / "tiny_image.mar")["weights"].startswith("user (a.pt")


def test_mismatching_keys_are_named(tmp_path, image_definition, staging):
    state = make_resnet(1000).state_dict()
    state["extra.weight"] = state.pop("conv1.weight")
    torch.save(state, tmp_path / "wrong.pth")
    with pytest.raises(BuildError) as caught:
        prepare_image(image_definition, from_path(tmp_path / "wrong.pth"), staging)
    message = str(caught.value)
    assert "wrong.pth does not fit the model" in message
    assert "missing keys: conv1.weight; unexpected keys: extra.weight" in message


def test_wrong_shapes_are_named(tmp_path, image_definition, staging):
    state = make_resnet(1000).state_dict()
    state["conv1.weight"] = torch.zeros(64, 3, 3, 3)
    torch.save(state, tmp_path / "wrong.pth")
    with pytest.raises(
        BuildError, match=r"wrong shapes: conv1.weight is \(64, 3, 3, 3\), not \(64, 3, 7, 7\)"
    ):
        prepare_image(image_definition, from_path(tmp_path / "wrong.pth"), staging)


def test_labels_must_fit_the_classes(tmp_path, image_definition, staging):
    torch.save(make_resnet(3).state_dict(), tmp_path / "three.pth")
    with pytest.raises(
        BuildError, match=r"three\.pth has 3 classes.*put labels\.txt with 3 lines beside the weights"
    ):
        prepare_image(image_definition, from_path(tmp_path / "three.pth"), staging)


class Exploding:
    """Would run code when unpickled."""

    def __reduce__(self):
        return (print, ("code from a weights file ran",))


def test_pickled_code_is_never_run(tmp_path, capsys):
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"a": Exploding()}))
    with pytest.raises(BuildError, match=r"evil\.pth cannot be read as weights"):
        read_checkpoint(tmp_path / "evil.pth")
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model.onnx", "notes.md"])
def test_other_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BuildError, match=r"weights must be one of \.safetensors, \.pt, .*: got"):
        read_checkpoint(tmp_path / name)


def test_an_empty_state_dict_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(BuildError, match=r"a\.pt holds no state dict"):
        read_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("labels.txt", "a\n\nb \n", ["a", "b"]),
        ("labels.txt", "\ufeffants\r\nbees\r\n", ["ants", "bees"]),  # as Windows' editors write it
        ("labels.txt", "one\u2028two\nthree\x85four", ["one\u2028two", "three\x85four"]),
        ("labels.json", '\ufeff["a", "b"]', ["a", "b"]),
        ("labels.json", '["a", "b"]', ["a", "b"]),
        ("index_to_name.json", '{"1": ["n2", "b"], "0": "a"}', ["a", "b"]),
    ],
)
def test_labels_are_read_in_each_form(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content.encode())
    assert read_labels(tmp_path / name) == expected


def test_labels_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BuildError, match=r"labels\.txt must be names in UTF-8"):
        read_labels(tmp_path / "labels.txt")


@pytest.mark.parametrize(
    ("labels", "problem_type", "read"),
    [
        ("cat\n", None, torch.sigmoid),
        ("cat\n", "regression", lambda logits: logits),
        ("cat\ndog\nhorse\n", "multi_label_classification", torch.sigmoid),
        ("cat\ndog\nhorse\n", None, lambda logits: logits.softmax(-1)),
    ],
)
def test_a_head_of_images_is_read_as_transformers_reads_one(tmp_path, labels, problem_type, read):
    names = labels.split()
    (tmp_path / "labels.txt").write_text(labels)
    model = make_resnet(len(names)).eval()
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    fields = {**TINY_IMAGE["model"], "preprocess": "reference"}
    if problem_type:
        fields["problem_type"] = problem_type
    definition = write_definition(tmp_path / "models", {**TINY_IMAGE, "model": fields})
    build_archive(definition, from_path(tmp_path / "mine.pth"), store=tmp_path)
    with zipfile.ZipFile(tmp_path / "tiny_image.mar") as packed:
        packed.extractall(tmp_path / "out")
    picture = Image.open(tmp_path / "out" / "canary.jpg")
    with torch.no_grad():
        expected = read(model(ImageClassification(crop_size=64, resize_size=72)(picture)[None])[0])
    assert answer_canary(tmp_path / "out") == pytest.approx(
        dict(zip(names, expected.tolist(), strict=True)), rel=2e-3
    )


@pytest.mark.parametrize("saved", [[torch.zeros(1)], {0: torch.zeros(1)}, torch.zeros(1), {"model": [1]}])
def test_what_is_no_state_dict_is_described(tmp_path, saved):
    torch.save(saved, tmp_path / "a.pt")
    with pytest.raises(BuildError, match=r"a\.pt holds no state dict, which is tensors by name: got "):
        read_checkpoint(tmp_path / "a.pt")


def test_the_class_count_does_not_depend_on_the_order_of_keys(tmp_path, image_definition, staging):
    definition = write_definition(
        tmp_path / "mobile", {**TINY_IMAGE, "architecture": "mobilenet_v3_small", "labels": ["a", "b", "c"]}
    )
    mobile = get_model("mobilenet_v3_small", num_classes=3).state_dict()
    torch.save(dict(reversed(mobile.items())), tmp_path / "mobile.pth")
    prepare_image(definition, from_path(tmp_path / "mobile.pth"), staging)


def test_a_file_without_the_classifier_is_refused(tmp_path, image_definition, staging):
    state = make_resnet(3).state_dict()
    del state["fc.weight"]
    torch.save(state, tmp_path / "headless.pth")
    with pytest.raises(BuildError, match=r"has no fc\.weight, the classifier of resnet18"):
        prepare_image(image_definition, from_path(tmp_path / "headless.pth"), staging)


def test_architecture_options_reach_every_source_and_the_worker(tmp_path, staging):
    options = {"width_per_group": 8}
    raw = {**TINY_IMAGE, "architecture": "resnet50", "pretrained": "IMAGENET1K_V2"}
    definition = write_definition(tmp_path / "narrow", {**raw, "architecture_options": options})
    prepared = prepare_image(definition, WeightsRequest(source="random"), staging)
    assert prepared.model["architecture_options"] == options
    assert load_file(staging / "model.safetensors")["layer1.0.conv1.weight"].shape[0] == 8
    wrong = write_definition(tmp_path / "wrong", {**raw, "architecture_options": {"widht": 8}})
    with pytest.raises(BuildError, match=r"cannot build resnet50 with architecture_options \{'widht': 8\}"):
        prepare_image(wrong, WeightsRequest(source="random"), staging)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "resnet19"}, "architecture must be a classifier of torchvision.models: got"),
        (
            {"pretrained": "V9"},
            "pretrained must be one of IMAGENET1K_V1, DEFAULT: got V9|IMAGENET1K_V1: got V9",
        ),
    ],
)
def test_wrong_torchvision_names_are_answered(tmp_path, staging, change, message):
    definition = write_definition(tmp_path / "wrong", {**TINY_IMAGE, **change})
    with pytest.raises(BuildError, match=message):
        prepare_image(definition, WeightsRequest(source="random"), staging)


def test_two_classes_of_one_name_are_left_out_of_the_canarys_answer():
    answer = [{"label": "crane", "probability": 0.5}, {"label": "crane", "probability": 0.3}]
    assert _expected([*answer, {"label": "maillot", "probability": 0.1}]) == {"maillot": 0.1}
    with pytest.raises(BuildError, match="best classes must have different names: got crane"):
        _expected(answer)


def test_labels_with_gaps_are_refused(tmp_path):
    (tmp_path / "labels.json").write_text('{"0": "a", "2": "b"}')
    with pytest.raises(BuildError, match="without gaps"):
        read_labels(tmp_path / "labels.json")


@pytest.fixture
def bert_folder(tmp_path):
    """A folder as save_pretrained writes it: a small BERT with three named classes."""
    folder = tmp_path / "bert"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "good", "bad"]
    (folder).mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    names = {0: "bad", 1: "fair", 2: "good"}
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32, num_labels=3,
        id2label=names, label2id={v: k for k, v in names.items()},
    )  # fmt: skip
    torch.manual_seed(1)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    (folder / "vocab.txt").unlink()
    return folder


def test_a_hugging_face_folder_is_packed_with_its_labels_and_tokenizer(bert_folder, text_definition, staging):
    prepared = prepare_text(text_definition, from_path(bert_folder), staging)
    assert prepared.weights.startswith("user (model.safetensors, sha256:")
    assert json.loads((staging / "labels.json").read_text()) == ["bad", "fair", "good"]
    assert "good" in (staging / "tokenizer.json").read_text()
    assert not any("stand-in" in note for note in prepared.notes)


def test_the_packed_folder_answers_as_transformers_does(bert_folder, text_definition, tmp_path):
    build_archive(text_definition, from_path(bert_folder), store=tmp_path)
    zipfile.ZipFile(tmp_path / "tiny_text.mar").extractall(tmp_path / "out")
    got = answer_canary(tmp_path / "out")
    text = (tmp_path / "out" / "canary.txt").read_text()
    tokenizer = BertTokenizerFast.from_pretrained(bert_folder)
    model = BertForSequenceClassification.from_pretrained(bert_folder).eval()
    inputs = tokenizer(text, truncation=True, max_length=32, return_tensors="pt")
    with torch.no_grad():
        expected = torch.softmax(model(**inputs).logits, 1)[0]
    assert got == pytest.approx(dict(zip(["bad", "fair", "good"], expected.tolist(), strict=True)), rel=1e-3)


def test_a_folder_without_config_is_refused(bert_folder, text_definition, staging):
    (bert_folder / "config.json").unlink()
    with pytest.raises(
        BuildError, match=r"it has no config\.json; save the model with model\.save_pretrained"
    ):
        prepare_text(text_definition, from_path(bert_folder), staging)


def test_a_folder_without_tokenizer_is_refused(bert_folder, text_definition, staging):
    for path in bert_folder.glob("*token*"):
        path.unlink()
    with pytest.raises(BuildError, match="has no tokenizer"):
        prepare_text(text_definition, from_path(bert_folder), staging)


def test_a_text_model_with_foreign_keys_is_refused(bert_folder, text_definition, staging):
    save_file({"encoder.weight": torch.zeros(2)}, bert_folder / "model.safetensors")
    with pytest.raises(
        BuildError, match=r"missing keys: bert\.embeddings.* and \d+ more; unexpected keys: encoder\.weight"
    ):
        prepare_text(text_definition, from_path(bert_folder), staging)


def test_a_trainer_folder_is_read(bert_folder, text_definition, staging):
    torch.save({"lr": 1}, bert_folder / "training_args.bin")
    torch.save({"state": [1]}, bert_folder / "optimizer.pt")
    torch.save({"last": 2}, bert_folder / "scheduler.pt")
    prepared = prepare_text(text_definition, from_path(bert_folder), staging)
    assert prepared.weights.startswith("user (model.safetensors")


def test_the_file_that_is_named_is_the_one_that_is_read(bert_folder, text_definition, staging):
    state = load_file(bert_folder / "model.safetensors")
    torch.save({**state, "classifier.bias": torch.full((3,), 7.0)}, bert_folder / "epoch-2.pt")
    prepared = prepare_text(text_definition, from_path(bert_folder / "epoch-2.pt"), staging)
    assert prepared.weights.startswith("user (epoch-2.pt")
    assert load_file(staging / "model.safetensors")["classifier.bias"].tolist() == [7.0] * 3


def test_a_folder_with_several_unknown_weights_files_is_refused(tmp_path):
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BuildError, match=r"or exactly one weights file .*: got a\.pt, b\.pt; name the file"):
        find_weights_file(tmp_path)


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "no-such-type"}, r"config\.json cannot be read as a model's: "),
        ({"model_type": "resnet"}, "makes no sequence classifier of transformers: ValueError"),
        ({"id2label": {"0": "bad", "1": "good", "2": "good"}}, "must have a name of its own: got 'good'"),
        ({"id2label": {"0": "bad", "2": "fair", "5": "good"}}, "id2label must name outputs 0 to 2"),
    ],
)
def test_a_wrong_config_is_answered(bert_folder, text_definition, staging, changes, message):
    change_json(bert_folder / "config.json", **changes)
    with pytest.raises(BuildError, match=message):
        prepare_text(text_definition, from_path(bert_folder), staging)


@pytest.mark.parametrize(
    "field",
    [
        {"_attn_implementation_internal": "somebody/code"},
        {"attn_implementation": {"": "somebody/code"}},
        {"text_config": {"_attn_implementation": "somebody/code:one"}},
    ],
)
def test_a_config_that_names_code_of_the_hub_is_refused(bert_folder, text_definition, staging, field):
    change_json(bert_folder / "config.json", **field)
    with pytest.raises(BuildError, match=r"must be one of eager, sdpa: got 'somebody/code"):
        prepare_text(text_definition, from_path(bert_folder), staging)


def test_a_config_that_names_transformers_own_attention_is_read(bert_folder, text_definition, staging):
    change_json(bert_folder / "config.json", _attn_implementation_autoset=True, attn_implementation="sdpa")
    prepare_text(text_definition, from_path(bert_folder), staging)


def test_a_config_that_is_no_json_is_answered(bert_folder, text_definition, staging):
    (bert_folder / "config.json").write_text("{")
    with pytest.raises(BuildError, match=r"config\.json cannot be read as JSON"):
        prepare_text(text_definition, from_path(bert_folder), staging)


def test_a_tokenizer_without_padding_is_refused(bert_folder, text_definition, staging):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(bert_folder / "tokenizer.json"))
    for path in bert_folder.glob("*token*"):
        path.unlink()
    tokenizer.save_pretrained(bert_folder)
    with pytest.raises(BuildError, match=r"must have a padding token: got none; set tokenizer\.pad_token"):
        prepare_text(text_definition, from_path(bert_folder), staging)


def test_what_goes_wrong_in_a_build_is_one_line(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise StepError("warm_up", "no memory", cure="use fewer workers")

    monkeypatch.setattr("models.build.build_archive", fail)
    assert main(["build", "--models", "bert", "--store", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: bert: no memory; use fewer workers\n"
