"""Pictures reach a model as torchvision's preset of its weights, or as its model.yaml says instead."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.models import DenseNet121_Weights, VisionTransformer, get_model, get_weight
from torchvision.transforms import InterpolationMode

from handlers.shared.images import decode_image
from handlers.shared.preprocessing import make_preprocessing
from models.build import build_archive
from models.errors import BuildError, DownloadError
from models.request import WeightsRequest
from models.samples import draw_image
from models.state import load_state
from models.tasks import image as kind
from models.tasks.image import prepare, read_preset
from tests.conftest import TINY_IMAGE, write_definition
from tests.handlers.files import encode

PRETRAINED = WeightsRequest(source="pretrained")
WEIGHTS = {
    "resnet50": ("ResNet50_Weights", "IMAGENET1K_V1"),
    "resnet50 V2": ("ResNet50_Weights", "IMAGENET1K_V2"),
    "mobilenet_v3_large": ("MobileNet_V3_Large_Weights", "IMAGENET1K_V2"),
    "regnet_y_16gf": ("RegNet_Y_16GF_Weights", "IMAGENET1K_SWAG_E2E_V1"),
    "efficientnet_b0": ("EfficientNet_B0_Weights", "IMAGENET1K_V1"),
    "efficientnet_b1": ("EfficientNet_B1_Weights", "IMAGENET1K_V2"),
    "efficientnet_v2_l": ("EfficientNet_V2_L_Weights", "IMAGENET1K_V1"),
    "convnext_tiny": ("ConvNeXt_Tiny_Weights", "IMAGENET1K_V1"),
    "swin_t": ("Swin_T_Weights", "IMAGENET1K_V1"),
    "vit_b_16": ("ViT_B_16_Weights", "IMAGENET1K_V1"),
    "vgg16": ("VGG16_Weights", "IMAGENET1K_FEATURES"),
}


def define(folder, architecture, weights="IMAGENET1K_V1", options=None, labels=(), **said):
    raw = {**TINY_IMAGE, "architecture": architecture, "weights": weights, "labels": list(labels)}
    raw |= {"architecture_options": options or {}, "options": {"top_k": 3, **said}}
    return write_definition(folder, raw)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_what_is_not_said_is_the_preset_of_the_weights(tmp_path, name, form):
    weights = get_weight(".".join(WEIGHTS[name]))
    settings = read_preset(define(tmp_path, name.split()[0], WEIGHTS[name][1]))
    data = encode(draw_image(500, 375, seed=3), form)
    picture = Image.open(io.BytesIO(data))
    expected = weights.transforms()(picture)
    exact, fast = (make_preprocessing(settings, way=way) for way in ("reference", "fast"))
    got = exact.pack([decode_image(data, exact)])[0]
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    # One level in one of a hundred values; bicubic's sharpest edges may differ by another.
    std = torch.tensor(settings["std"]).view(3, 1, 1)
    levels = (fast.pack([decode_image(data, fast)])[0] - expected).mul(255 * std).abs()
    assert levels.max() < (1.01 if settings["interpolation"] == "bilinear" else 2.01)
    assert (levels > 0.5).float().mean() < 0.01
    # Of tensors torchvision computes in floats: half a level on average where a value differs.
    tensor = weights.transforms()(transforms.functional.pil_to_tensor(picture.convert("RGB")))
    assert (got - tensor).mul(255 * std).abs().mean() < 0.2


BICUBIC = {"interpolation": "bicubic", "preprocess": "reference"}


def served_answer(folder):
    """Label → probability of the smoke that the built handler gave, and the smoke's picture."""
    with zipfile.ZipFile(folder / "tiny_image.mar") as archive:
        smoke = json.loads(archive.read("definition.json"))["example"]
        return {one["label"]: one["probability"] for one in smoke["expected"]}, Image.open(
            io.BytesIO(archive.read(smoke["file"]))
        )


@pytest.mark.parametrize(
    ("architecture", "said", "resize"),
    [
        ("squeezenet1_1", {"size": {"resize": [96, 128]}, **BICUBIC}, [96, 128]),
        ("mnasnet0_5", {"size": {"resize": 100, "crop": [64, 96]}, **BICUBIC}, [100]),
        ("efficientnet_b0", {"preprocess": "reference"}, None),
    ],
)
def test_a_users_model_is_given_what_its_definition_says(tmp_path, architecture, said, resize):
    """The archive's answer is that of the user's own model on pixels of torchvision's own transforms."""
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    labels = ["a", "b", "c"]
    torch.manual_seed(5)
    model = get_model(architecture, num_classes=3)
    for norm in (one for one in model.modules() if isinstance(one, torch.nn.BatchNorm2d)):
        norm.momentum = None
    model(torch.randn(4, 3, 96, 96))  # else nothing of the picture reaches the answer
    torch.save(model.eval().state_dict(), tmp_path / "mine.pth")
    if resize:
        said = {**said, "mean": mean, "std": std}
        crop = said["size"].get("crop", resize)
        steps = [
            transforms.Resize(resize, InterpolationMode.BICUBIC),
            transforms.CenterCrop(crop),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
        prepare_picture = transforms.Compose(steps)
    else:
        prepare_picture = get_weight("EfficientNet_B0_Weights.IMAGENET1K_V1").transforms()
    definition = define(tmp_path / "models", architecture, labels=labels, **said)
    build_archive(definition, WeightsRequest(source="path", path=tmp_path / "mine.pth"), store=tmp_path)
    got, picture = served_answer(tmp_path)
    with torch.no_grad():
        expected = torch.softmax(model(prepare_picture(picture)[None]), 1)[0]
    assert got == pytest.approx(dict(zip(labels, expected.tolist(), strict=True)), rel=1e-3)


def no_network(*_, **__):
    raise DownloadError("no network")


@pytest.mark.parametrize("source", ["pretrained", "auto"])
def test_a_preset_that_is_not_that_of_the_weights_is_rejected(tmp_path, monkeypatch, source):
    monkeypatch.setattr(kind, "fetch_checkpoint", no_network)
    size = {"resize": 232, "crop": 224}
    resnets = {"size": size, "interpolation": "bilinear", "mean": [0.485, 0.456, 0.406]}
    definition = define(tmp_path, "efficientnet_b0", **resnets)
    with pytest.raises(BuildError, match=r"size: .*interpolation: bilinear; IMAGENET1K_V1"):
        prepare(definition, WeightsRequest(source=source), tmp_path)


@pytest.mark.parametrize("architecture", ["googlenet", "inception_v3"])
def test_models_that_normalise_again_must_say_so(tmp_path, monkeypatch, architecture):
    """torchvision gives `transform_input` to its pretrained weights alone; a state dict does not show it."""
    monkeypatch.setattr(kind, "fetch_checkpoint", no_network)
    with pytest.raises(BuildError, match=r"needs architecture_options: \{transform_input: true\} or false"):
        prepare(define(tmp_path, architecture), WeightsRequest(source="random"), tmp_path)
    with pytest.raises(BuildError, match="was trained with true: write that"):
        prepare(define(tmp_path, architecture, options={"transform_input": False}), PRETRAINED, tmp_path)
    with pytest.raises(DownloadError):
        prepare(define(tmp_path, architecture, options={"transform_input": True}), PRETRAINED, tmp_path)


def test_torchvisions_densenets_are_read_as_torchvision_does(tmp_path, monkeypatch):
    """Its own files have the keys of before torch 0.4 (norm.1 …)."""
    torch.manual_seed(1)
    model = get_model("densenet121", weights=None)
    state = {key: value for key, value in model.state_dict().items() if "num_batches" not in key}
    for part in ("norm", "conv"):
        for number in "12":
            names = {key: key.replace(f".{part}{number}.", f".{part}.{number}.") for key in state}
            state = {names[key] if "denselayer" in key else key: value for key, value in state.items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in state
    torch.save(state, tmp_path / "old.pth")
    monkeypatch.setattr(kind, "fetch_checkpoint", lambda *_, **__: tmp_path / "old.pth")
    monkeypatch.setattr(DenseNet121_Weights, "get_state_dict", lambda *_, **__: dict(state))
    got, _, _, _ = kind._from_pretrained(define(tmp_path, "densenet121"), PRETRAINED)
    expected = get_model("densenet121", weights="IMAGENET1K_V1").state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in got.state_dict().items())


def test_old_keys_of_vision_transformers_are_read():
    torch.manual_seed(1)
    sizes = {"image_size": 32, "patch_size": 16, "num_layers": 1, "num_heads": 2}
    model = VisionTransformer(**sizes, hidden_dim=8, mlp_dim=8, num_classes=2)
    renamed = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
    state = {key: value.clone() for key, value in model.state_dict().items()}
    for new, old in renamed.items():
        state = {key.replace(new, old): value for key, value in state.items()}
    other = VisionTransformer(**sizes, hidden_dim=8, mlp_dim=8, num_classes=2)
    load_state(other, state, source="old.pth")
    picture = torch.randn(1, 3, 32, 32)
    np.testing.assert_array_equal(other.eval()(picture).detach(), model.eval()(picture).detach())


def test_a_vision_transformer_is_built_for_the_size_of_its_pictures(tmp_path):
    definition = define(tmp_path, "vit_b_16", "IMAGENET1K_SWAG_E2E_V1")
    weights = get_weight("ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1")
    assert kind.read_options(definition) == {"image_size": weights.meta["min_size"][0]}
