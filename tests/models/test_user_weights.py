"""A user's own weights: loaded without running code, labelled, and refused with the keys that do not fit."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import get_model
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from models.build import answer_canary, build_archive, read_archive_definition
from models.errors import BuildError
from models.kinds.image import prepare as prepare_image
from models.kinds.text import prepare as prepare_text
from models.labels import read_labels
from models.request import WeightsRequest
from models.state import read_state
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
        read_state(tmp_path / "evil.pth")
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model.onnx", "notes.md"])
def test_other_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BuildError, match=r"weights must be one of \.safetensors, \.pt, \.pth, \.bin: got"):
        read_state(tmp_path / name)


def test_an_empty_state_dict_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(BuildError, match=r"a\.pt holds no state dict"):
        read_state(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("labels.txt", "a\n\nb \n", ["a", "b"]),
        ("labels.json", '["a", "b"]', ["a", "b"]),
        ("index_to_name.json", '{"1": ["n2", "b"], "0": "a"}', ["a", "b"]),
    ],
)
def test_labels_are_read_in_each_form(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content)
    assert read_labels(tmp_path / name) == expected


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
    import zipfile

    zipfile.ZipFile(tmp_path / "tiny_text.mar").extractall(tmp_path / "out")
    got = answer_canary("cpu_text_classifier", tmp_path / "out")
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


def test_lengths_beyond_the_models_positions_are_refused(bert_folder, tmp_path, staging):
    model = {**TINY_TEXT["model"], "token_lengths": [16, 64]}
    definition = write_definition(tmp_path / "long", {**TINY_TEXT, "model": model})
    with pytest.raises(BuildError, match="token_lengths must be at most 32 for this model: got 64"):
        prepare_text(definition, from_path(bert_folder), staging)
