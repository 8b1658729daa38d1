"""A handler of one's own: objects in an image, by a detector of torchvision.

It has as many boxes as there are objects, which no graph of fixed shapes holds: it is served eager.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.transforms.functional import pil_to_tensor

from handlers.kit_handler import KitHandler
from handlers.request import Request
from handlers.shared.errors import BadRequest

THRESHOLD = 0.5
"""Of a score, where model.yaml has none."""


class Detector(KitHandler):
    """torchvision's SSDlite: image in; label, score and box of each object out, the surest first."""

    freeze = False
    convolutional = True
    libraries = ("torchvision", "pillow")

    def load_model(self) -> torch.nn.Module:
        labels = len(self.definition.labels)
        model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=labels)
        return self.load_weights(model)

    def decode(self, request: Request) -> torch.Tensor:
        """float32 (3, height, width), 0 to 1, of the image's own size."""
        try:
            image = Image.open(io.BytesIO(request.data or b"")).convert("RGB")
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise BadRequest(415, "send one image, as JPEG or PNG") from error
        return pil_to_tensor(image).float() / 255

    def collate(self, samples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As torchvision's detectors take them: images of any sizes."""
        return list(samples)

    def split(self, outputs: list[dict[str, torch.Tensor]], samples: Sequence[Any]) -> list[Any]:
        """What the model is sure of, which a load compares with eager FP32: rounding decides on the rest."""
        threshold = self.definition.model.get("threshold", THRESHOLD)
        sure = [one["scores"] >= threshold for one in outputs]
        return [{name: one[name][kept] for name in one} for one, kept in zip(outputs, sure, strict=True)]

    def encode(self, output: dict[str, torch.Tensor], sample: torch.Tensor) -> list[dict[str, Any]]:
        """Boxes are [left, top, right, bottom] in pixels of the request's image."""
        found = zip(*(output[name].tolist() for name in ("labels", "scores", "boxes")), strict=True)
        labels = self.definition.labels
        return [{"label": labels[label], "score": score, "box": box} for label, score, box in found]
