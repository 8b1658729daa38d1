"""Serves a torchvision image classifier: image bytes in, the top-k labels with probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from handlers.shared.bodies import as_bytes, decode_base64, parse_json_object, take_field
from handlers.shared.classifier import Request
from handlers.shared.definition import Definition
from handlers.shared.images import ImageSize, decode_image
from handlers.shared.torchserve import TorchServeHandler
from handlers.shared.weights import load_weights

JSON_FORM = '{"data": "<base64 of an image>"} or the image\'s own bytes'


class CpuImageClassifier(TorchServeHandler):
    """Any classifier of torchvision.models, named by `model.architecture`."""

    convolutional = True
    libraries = ("torchvision", "pillow", "numpy")

    def configure(self, definition: Definition) -> None:
        super().configure(definition)
        self.size = ImageSize(**definition.model["size"])
        self.mean = torch.tensor(definition.model["mean"]) * 255
        self.deviation = torch.tensor(definition.model["std"]) * 255
        self.top_k = min(definition.model["top_k"], len(self.labels))

    def build_model(self) -> torch.nn.Module:
        from torchvision.models import get_model

        settings = self.definition.model
        options = settings.get("architecture_options", {})
        model = get_model(settings["architecture"], weights=None, num_classes=len(self.labels), **options)
        return load_weights(model, self.definition).eval()

    def read_request(self, body: Any) -> Request:
        data = as_bytes(body)
        if data is None or data.lstrip()[:1] == b"{":
            encoded = take_field(parse_json_object(body, wanted=JSON_FORM), "data", wanted=JSON_FORM)
            data = decode_base64(encoded, field='"data"')
        return Request(samples=[decode_image(data, self.size)])

    def example_samples(self, count: int, *, length: int) -> list[np.ndarray]:
        canary = (self.definition.directory / self.definition.canary["file"]).read_bytes()
        image = decode_image(canary, self.size)
        return [np.roll(image, 17 * shift, axis=(0, 1)) for shift in range(count)]

    def to_inputs(
        self, samples: Sequence[np.ndarray], *, length: int, channels_last: bool
    ) -> tuple[torch.Tensor, ...]:
        """uint8 (crop, crop, 3) each → normalised float32 (N, 3, crop, crop)."""
        pixels = torch.from_numpy(np.stack(samples)).float().sub_(self.mean).div_(self.deviation)
        # Rows are stored NHWC, so this view *is* channels_last; the other layout costs a copy.
        images = pixels.permute(0, 3, 1, 2)
        return (images if channels_last else images.contiguous(),)

    def to_answer(self, probabilities: np.ndarray, facts: dict[str, Any]) -> list[dict[str, Any]]:
        best = np.argsort(-probabilities, kind="stable")[: self.top_k]
        return [
            {"label": self.labels[index], "index": int(index), "probability": float(probabilities[index])}
            for index in best
        ]
