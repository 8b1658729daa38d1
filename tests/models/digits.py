"""A small convolutional network trained on scikit-learn's 1,797 hand-written digits, in folders of files."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import transforms
from torchvision.models import get_model

from tests.conftest import TINY_IMAGE, write_definition
from tests.models.training import SEED, Trained, borrow_precisions, cut, fixed_conditions, train

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""In the order of the classes, which is not that of the alphabet."""
CALIBRATION, HELD_OUT = 100, 500
SIDES = (30, 64, 160)
"""Pictures of several sizes: the smallest of them is enlarged, libjpeg halves the largest."""
SIZE = {"resize": 22, "crop": 20}
MEAN, DEVIATION = [0.2, 0.3, 0.25], [0.35, 0.3, 0.4]
"""Of no meaning, but different for each channel."""
EPOCHS, ROWS, RATE = 5, 64, 0.02


def train_digits(folder: Path) -> Trained:
    """Write the pictures, train on one part of them, and save the weights with their labels."""
    write_pictures(folder)
    definition = write_definition(folder / "models", _define())
    with fixed_conditions():
        model = _train(*_read(folder / "train"))
        pixels, classes = _read(folder / "evaluation")
        with torch.no_grad():
            probabilities = torch.softmax(model(pixels), 1)
    weights = folder / "weights"
    weights.mkdir()
    torch.save(model.state_dict(), weights / "digits.pt")
    (weights / "labels.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return Trained(
        definition=definition,
        weights=weights,
        calibration=folder / "calibration",
        evaluation=folder / "evaluation",
        requests=tuple(map(_to_request, _list(folder / "evaluation"))),
        answers=tuple(NAMES[number] for number in classes),
        labels=NAMES,
        probabilities=probabilities,
    )


def _define() -> dict:
    model = {**TINY_IMAGE["options"], "size": SIZE, "mean": MEAN, "std": DEVIATION, "top_k": len(NAMES)}
    return {**TINY_IMAGE, **borrow_precisions("image"), "name": "digits", "options": model}


def write_pictures(folder: Path) -> None:
    """`train`, `calibration` and `evaluation`, each with a folder a class; no digit is in two of them."""
    digits = load_digits()
    order = random.Random(SEED).sample(range(len(digits.target)), len(digits.target))
    for position, number in enumerate(order):
        held_out = position < HELD_OUT
        part = "evaluation" if held_out else "calibration" if position < HELD_OUT + CALIBRATION else "train"
        target = folder / part / NAMES[digits.target[number]]
        target.mkdir(parents=True, exist_ok=True)
        _write(digits.images[number], target / f"{number:04}", number)


def _write(levels: np.ndarray, stem: Path, number: int) -> None:
    """0-16, float (8, 8) → a PNG or a JPEG with a margin of one pixel of the original."""
    framed = np.pad(levels * 255 / 16, 1).astype(np.uint8)
    side = SIDES[number % len(SIDES)]
    picture = Image.fromarray(framed).resize((side, side), Image.Resampling.BICUBIC)
    if number % 2:
        picture.save(stem.with_suffix(".png"))
    else:
        picture.convert("RGB").save(stem.with_suffix(".jpg"), quality=90)


def _list(folder: Path) -> list[Path]:
    """All files, the classes in turn: answers that are mixed up within a batch are wrong."""
    return sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.name)


def _read(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (n, 3, crop, crop) by torchvision's own transforms, and the classes, int64 (n,)."""
    prepare = transforms.Compose(
        [
            transforms.Resize(SIZE["resize"]),
            transforms.CenterCrop(SIZE["crop"]),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, DEVIATION),
        ]
    )
    files = _list(folder)
    pixels = torch.stack([prepare(Image.open(file).convert("RGB")) for file in files])
    return pixels, torch.tensor([NAMES.index(file.parent.name) for file in files])


def _to_request(file: Path) -> bytes:
    """JPEGs as they are, PNGs as base64 in JSON."""
    data = file.read_bytes()
    return data if file.suffix == ".jpg" else json.dumps({"data": base64.b64encode(data).decode()}).encode()


def _train(pixels: torch.Tensor, classes: torch.Tensor) -> torch.nn.Module:
    # channels_last trains a fifth faster here; the saved weights are the same.
    model = get_model("resnet18", weights=None, num_classes=len(NAMES)).to(memory_format=torch.channels_last)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    order = random.Random(SEED).sample(range(len(classes)), len(classes))

    def loss(batch: list[int]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(pixels[batch]), classes[batch])

    train(model, optimizer, batches=cut(order, ROWS), epochs=EPOCHS, loss=loss)
    return model
