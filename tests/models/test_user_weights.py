"""A user's own weights: packed with their labels, read as transformers reads them, rejected by name."""

from __future__ import annotations

import zipfile
from unittest.mock import MagicMock

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.models import get_model
from torchvision.transforms._presets import ImageClassification
from transformers import PreTrainedTokenizerFast

from handlers.answers import read_scores
from handlers.replies import Reply, to_json
from models import expected as module
from models.build import build_archive
from models.errors import BuildError
from models.expected import answer_example
from models.files import find_weights_file
from models.labels import read_labels
from models.tasks.image import prepare as prepare_image
from models.tasks.text import prepare as prepare_text
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, from_path, write_definition
from tests.models.folders import edit, make_bert


@pytest.fixture
def image_definition(tmp_path):
    return write_definition(tmp_path / "models", TINY_IMAGE)


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
    assert prepared.labels == ["cat", "dog", "horse"]


@pytest.mark.parametrize(
    ("classes", "changes", "named"),
    [
        (1000, {"conv1.weight": None, "extra.weight": torch.zeros(2)}, r"conv1\.weight.*extra\.weight"),
        (1000, {"conv1.weight": torch.zeros(64, 3, 3, 3)}, r"conv1\.weight is \(64, 3, 3, 3\)"),
        (3, {}, r"3 classes.*labels\.txt"),
        (3, {"fc.weight": None}, r"no fc\.weight"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, image_definition, staging, classes, changes, named):
    state = {**make_resnet(classes).state_dict(), **changes}
    kept = {key: value for key, value in state.items() if value is not None}
    torch.save(kept, tmp_path / "wrong.pth")
    with pytest.raises(BuildError, match=named):
        prepare_image(image_definition, from_path(tmp_path / "wrong.pth"), staging)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("labels.txt", "a\n\nb \n", ["a", "b"]),
        ("labels.txt", "\ufeffants\r\nbees\r\n", ["ants", "bees"]),  # as Windows' editors write it
        ("labels.txt", "one\u2028two\nthree\x85four", ["one\u2028two", "three\x85four"]),
        ("labels.json", '\ufeff["a", "b"]', ["a", "b"]),
        ("index_to_name.json", '{"1": ["n2", "b"], "0": "a"}', ["a", "b"]),
    ],
)
def test_labels_are_read_in_each_form(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content.encode())
    assert read_labels(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "content"), [("labels.txt", b"caf\xe9"), ("labels.json", b'{"0": "a", "2": "b"}')]
)
def test_labels_that_are_no_text_or_have_gaps_are_rejected(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BuildError):
        read_labels(tmp_path / name)


@pytest.mark.parametrize(
    ("labels", "problem_type", "read"),
    [
        ("cat\n", None, torch.sigmoid),
        ("cat\n", "regression", lambda logits: logits),
        ("cat\ndog\nhorse\n", "multi_label_classification", torch.sigmoid),
    ],
)
def test_a_head_of_images_is_read_as_transformers_reads_one(tmp_path, labels, problem_type, read):
    names = labels.split()
    (tmp_path / "labels.txt").write_text(labels)
    model = make_resnet(len(names)).eval()
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    fields = {**TINY_IMAGE["options"], "preprocess": "reference"}
    if problem_type:
        fields["problem_type"] = problem_type
    definition = write_definition(tmp_path / "models", {**TINY_IMAGE, "options": fields})
    build_archive(definition, from_path(tmp_path / "mine.pth"), store=tmp_path)
    with zipfile.ZipFile(tmp_path / "tiny_image.mar") as packed:
        packed.extractall(tmp_path / "out")
    picture = Image.open(tmp_path / "out" / "example.jpg")
    with torch.no_grad():
        expected = read(model(ImageClassification(crop_size=64, resize_size=72)(picture)[None])[0])
    (scores,) = read_scores(answer_example(tmp_path / "out"))
    assert scores == pytest.approx(dict(zip(names, expected.tolist(), strict=True)), rel=2e-3)


def test_the_class_count_does_not_depend_on_the_order_of_keys(tmp_path, staging):
    definition = write_definition(
        tmp_path / "mobile", {**TINY_IMAGE, "architecture": "mobilenet_v3_small", "labels": ["a", "b", "c"]}
    )
    mobile = get_model("mobilenet_v3_small", num_classes=3).state_dict()
    torch.save(dict(reversed(mobile.items())), tmp_path / "mobile.pth")
    prepare_image(definition, from_path(tmp_path / "mobile.pth"), staging)


def test_architecture_options_reach_the_worker(tmp_path, staging):
    options = {"width_per_group": 8}
    raw = {**TINY_IMAGE, "architecture": "resnet50", "weights": "IMAGENET1K_V2", "labels": ["a", "b"]}
    definition = write_definition(tmp_path / "narrow", {**raw, "architecture_options": options})
    torch.save(get_model("resnet50", num_classes=2, **options).state_dict(), tmp_path / "mine.pth")
    prepared = prepare_image(definition, from_path(tmp_path / "mine.pth"), staging)
    assert prepared.model["architecture_options"] == options


@pytest.mark.parametrize(
    "change",
    [{"architecture": "resnet19"}, {"weights": "V9"}, {"architecture_options": {"widht": 8}}],
)
def test_wrong_torchvision_names_are_answered(tmp_path, staging, change):
    definition = write_definition(tmp_path / "wrong", {**TINY_IMAGE, **change})
    with pytest.raises(BuildError, match=next(iter(change))):
        prepare_image(definition, RANDOM, staging)


def test_the_whole_answer_is_packed_rounded_and_must_tell_a_right_worker(monkeypatch, tmp_path):
    """As ImageNet's two cranes do not, where nothing else is among the best few."""
    answer = {"boxes": [{"score": 0.123456, "box": [12345.678, 0.0], "class": 123456}], "text": "0.123456"}
    handler = MagicMock(answer=lambda _: [Reply(status=200, body=to_json(answer))])
    handler.definition.example.content_type = "application/json"
    monkeypatch.setattr(module, "load_handler", lambda _: handler)
    rounded = {"boxes": [{"score": 0.1235, "box": [12350.0, 0.0], "class": 123456}], "text": "0.123456"}
    assert answer_example(tmp_path) == rounded
    answer = [{"label": "crane", "index": number, "probability": 0.3} for number in (134, 517)]
    with pytest.raises(BuildError, match="best labels must have different names"):
        answer_example(tmp_path)


def test_a_folder_with_several_unknown_weights_files_is_rejected(tmp_path):
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BuildError, match=r"a\.pt, b\.pt"):
        find_weights_file(tmp_path)


@pytest.fixture
def bert_folder(tmp_path):
    return make_bert(tmp_path / "bert", ["bad", "fair", "good"])


def prepare_folder(tmp_path, path):
    (tmp_path / "staging").mkdir(exist_ok=True)
    definition = write_definition(tmp_path / "models", {**TINY_TEXT, "architecture_options": {}})
    return prepare_text(definition, from_path(path), tmp_path / "staging")


def test_a_trainer_folder_is_read_and_the_file_that_is_named_in_it(tmp_path, bert_folder):
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt"):
        torch.save({"state": [1]}, bert_folder / name)
    edit(bert_folder / "config.json", _attn_implementation_autoset=True, attn_implementation="sdpa")
    prepared = prepare_folder(tmp_path, bert_folder)
    assert prepared.weights.startswith("user (model.safetensors, sha256:")
    assert prepared.labels == ["bad", "fair", "good"]
    state = load_file(bert_folder / "model.safetensors")
    torch.save({**state, "classifier.bias": torch.full((3,), 7.0)}, bert_folder / "epoch-2.pt")
    assert prepare_folder(tmp_path, bert_folder / "epoch-2.pt").weights.startswith("user (epoch-2.pt")
    packed = load_file(tmp_path / "staging" / "model.safetensors")
    assert packed["classifier.bias"].tolist() == [7.0] * 3


def without_padding(folder):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for path in folder.glob("*token*"):
        path.unlink()
    tokenizer.save_pretrained(folder)


CODE = "somebody/code"
WRONG_CONFIGS = [
    ({"model_type": "no-such-type"}, "config.json"),
    ({"model_type": "resnet"}, "makes no model of transformers"),
    ({"id2label": {"0": "bad", "1": "good", "2": "good"}}, "'good'"),
    ({"id2label": {"0": "bad", "2": "fair", "5": "good"}}, "id2label"),
    # Code of the hub is never run.
    ({"_attn_implementation_internal": CODE}, CODE),
    ({"attn_implementation": {"": CODE}}, CODE),
    ({"text_config": {"_attn_implementation": f"{CODE}:one"}}, CODE),
]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: save_file({"a.weight": torch.zeros(2)}, folder / "model.safetensors"), "a.weight"),
        (without_padding, "padding token"),
        *(
            (lambda folder, changes=changes: edit(folder / "config.json", **changes), named)
            for changes, named in WRONG_CONFIGS
        ),
    ],
)
def test_a_folder_that_cannot_be_served_is_rejected_by_name(tmp_path, bert_folder, spoil, named):
    spoil(bert_folder)
    with pytest.raises(BuildError) as caught:
        prepare_folder(tmp_path, bert_folder)
    assert named in str(caught.value)
