"""Serves a torchvision image classifier: image bytes in, the top-k labels with probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from handlers.shared.bodies import as_bytes, decode_base64, is_json, parse_json_object, take_field
from handlers.shared.classifier import Request
from handlers.shared.definition import Definition
from handlers.shared.images import LIMITS, decode_image
from handlers.shared.outputs import NONE
from handlers.shared.preprocessing import make_preprocessing
from handlers.shared.torchserve import TorchServeHandler
from handlers.shared.weights import load_weights

JSON_FORM = '{"data": "<base64 of an image>"} or the image\'s own bytes'


class CpuImageClassifier(TorchServeHandler):
    """Any classifier of torchvision.models, named by `model.architecture`."""

    convolutional = True
    libraries = ("torchvision", "pillow", "numpy")
    LIMITS = LIMITS

    def configure(self, definition: Definition) -> None:
        super().configure(definition)
        settings = definition.model
        self.preprocessing = make_preprocessing(settings)
        self.top_k = min(settings["top_k"], len(self.labels))

    def build_model(self) -> torch.nn.Module:
        from torchvision.models import get_model

        settings = self.definition.model
        options = settings.get("architecture_options", {})
        model = get_model(settings["architecture"], weights=None, num_classes=len(self.labels), **options)
        return load_weights(model, self.definition).eval()

    def read_request(self, body: Any) -> Request:
        data = as_bytes(body)
        if data is None or is_json(data):
            encoded = take_field(parse_json_object(body, wanted=JSON_FORM), "data", wanted=JSON_FORM)
            data = decode_base64(encoded, field='"data"')
        return Request(inputs=[decode_image(data, self.preprocessing, self.limits)])

    def example_samples(self, count: int) -> list[torch.Tensor]:
        canary = (self.definition.directory / self.definition.canary["file"]).read_bytes()
        image = decode_image(canary, self.preprocessing)
        return [image.roll((17 * shift, 17 * shift), dims=(0, 1)) for shift in range(count)]

    def to_inputs(
        self, rows: Sequence[Sequence[torch.Tensor]], *, length: int, channels_last: bool
    ) -> tuple[torch.Tensor, ...]:
        """uint8 (height, width, 3) each → normalised float32 (N, 3, height, width)."""
        return (self.preprocessing.pack([sample for (sample,) in rows], channels_last=channels_last),)

    def to_answer(self, scores: np.ndarray, sample: torch.Tensor) -> list[dict[str, Any]]:
        best = np.argsort(-scores, kind="stable")[: self.top_k]
        name = "score" if self.activation == NONE else "probability"
        return [
            {"label": self.labels[index], "index": int(index), name: float(scores[index])} for index in best
        ]
