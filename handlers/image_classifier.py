"""Serves a torchvision image classifier: image bytes in, the top-k labels with probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.definition import Definition
from handlers.kit_handler import KitHandler
from handlers.request import Request, decode_base64
from handlers.shared.classifier import Classifier
from handlers.shared.images import LIMITS, decode_image
from handlers.shared.outputs import NONE
from handlers.shared.preprocessing import make_preprocessing
from handlers.shared.weights import without_random_values

JSON_FORM = '{"data": "<base64 of an image>"} or the image\'s own bytes'


class ImageClassifier(Classifier, KitHandler):
    """Any classifier of torchvision.models, named by `model.architecture`."""

    convolutional = True
    fuses = True
    libraries = ("torchvision", "pillow", "numpy")
    LIMITS = LIMITS

    def configure(self, definition: Definition, directory: Path) -> None:
        super().configure(definition, directory)
        self.preprocessing = make_preprocessing(definition.model)
        self.top_k = min(definition.model["top_k"], len(self.labels))

    def load_model(self) -> torch.nn.Module:
        from torchvision.models import get_model

        settings = self.definition.model
        options = settings.get("architecture_options", {})
        with without_random_values():
            model = get_model(settings["architecture"], weights=None, num_classes=len(self.labels), **options)
        return self.load_weights(model)

    def decode(self, request: Request) -> torch.Tensor:
        """uint8 (height, width, 3) of the model's size."""
        data = request.data
        if data is None or request.is_json:
            data = decode_base64(request.field("data", wanted=JSON_FORM), field='"data"')
        return decode_image(data, self.preprocessing, self.limits)

    def collate(self, samples: Sequence[torch.Tensor]) -> torch.Tensor:
        """Normalised float32 (N, 3, height, width)."""
        return self.preprocessing.pack(samples)

    def encode(self, output: torch.Tensor, sample: torch.Tensor) -> list[dict[str, Any]]:
        scores = self.score(output).numpy()
        best = np.argsort(-scores, kind="stable")[: self.top_k].tolist()
        name = "score" if self.activation == NONE else "probability"
        return [{"label": self.labels[index], "index": index, name: float(scores[index])} for index in best]

    def make_examples(self, count: int) -> list[torch.Tensor]:
        image = self.decode(Request(content=self.example))
        return [image.roll((17 * shift, 17 * shift), dims=(0, 1)) for shift in range(count)]
