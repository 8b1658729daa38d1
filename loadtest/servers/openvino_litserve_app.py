"""OpenVINO behind LitServe, as their documents do it, with the weights of a kit archive; the kit does not
import it.

Run by an environment with both: `openvino_litserve_app.py FOLDER PORT PRECISION WORKERS BATCH`, with `build`
for PORT first. FOLDER has an unpacked archive and `calibration/`, bodies as they are sent. The graph is made
by `openvino.convert_model` and, for INT8, `nncf.quantize`, both as they come. Images arrive as base64 in
JSON: LitServe reads JSON or forms. Answers have the kit's form, so that they can be compared.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"NNCF_CI": "1", "HF_HUB_OFFLINE": "1"}  # neither tells its maker, nor asks for another model

import litserve
import numpy as np
import torch
from PIL import Image

BEST = 5
GRAPH = "litserve.xml"


class ImageModel:
    """One of torchvision's classifiers, with its weights' own preprocessing (bilinear, antialiased)."""

    def __init__(self, folder: Path, definition: dict[str, Any]) -> None:
        from torchvision.transforms._presets import ImageClassification

        options = definition["model"]
        size = options.get("size", {"resize": 232, "crop": 224})
        self.labels = definition["labels"]
        self.transform = ImageClassification(crop_size=size["crop"], resize_size=size["resize"])
        self.folder, self.definition = folder, definition

    def load(self) -> torch.nn.Module:
        from safetensors.torch import load_file
        from torchvision import models

        model = models.get_model(self.definition["model"]["architecture"])
        model.load_state_dict(load_file(self.folder / "model.safetensors"))
        return model.eval()

    def decode(self, request: dict[str, str]) -> np.ndarray:
        image = Image.open(io.BytesIO(base64.b64decode(request["image"])))
        return self.transform(image.convert("RGB")).numpy()

    def collate(self, samples: list[np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": np.stack(samples)}

    def encode(self, row: np.ndarray) -> Any:
        best = np.argsort(-row)[:BEST]
        return [
            {"label": self.labels[index], "index": int(index), "probability": float(row[index])}
            for index in best
        ]


class TextModel:
    """A sequence classifier of transformers; a batch is padded to its longest text."""

    def __init__(self, folder: Path, definition: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.labels, self.folder = definition["labels"], folder
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(512)
        self.tokenizer.no_padding()

    def load(self) -> torch.nn.Module:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_pretrained(self.folder).eval()

    def decode(self, request: dict[str, str]) -> list[int]:
        return self.tokenizer.encode(request["text"]).ids

    def collate(self, samples: list[list[int]]) -> dict[str, np.ndarray]:
        ids = np.zeros((len(samples), max(map(len, samples))), np.int64)
        mask = np.zeros_like(ids)
        for row, sample in enumerate(samples):
            ids[row, : len(sample)], mask[row, : len(sample)] = sample, 1
        return {"input_ids": ids, "attention_mask": mask}

    def encode(self, row: np.ndarray) -> Any:
        scores = {label: float(value) for label, value in zip(self.labels, row, strict=True)}
        return {"label": max(scores, key=scores.__getitem__), "probabilities": scores}


def read_model(folder: Path) -> ImageModel | TextModel:
    definition = json.loads((folder / "definition.json").read_text(encoding="utf-8"))
    return (TextModel if (folder / "tokenizer.json").exists() else ImageModel)(folder, definition)


def build(folder: Path, precision: str) -> None:
    """Write the graph beside the weights."""
    import nncf
    import openvino

    kind: Any = read_model(folder)
    bodies = sorted((folder / "calibration").glob("*.json"))
    samples = [kind.collate([kind.decode(json.loads(file.read_text()))]) for file in bodies]
    example = {name: torch.from_numpy(value) for name, value in samples[0].items()}
    with torch.no_grad():
        whole = next(iter(example.values())) if isinstance(kind, ImageModel) else example
        graph = openvino.convert_model(kind.load(), example_input=whole)
    if precision == "int8":
        texts = isinstance(kind, TextModel)
        given = [samples[number % len(samples)] for number in range(100)]
        inputs = given if texts else [sample["x"] for sample in given]
        model_type = nncf.ModelType.TRANSFORMER if texts else None
        graph = nncf.quantize(graph, nncf.Dataset(inputs), model_type=model_type)
    openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)


class Served(litserve.LitAPI):
    """One worker: an OpenVINO model of its own."""

    def __init__(self, folder: Path, precision: str, threads: int, batch: int) -> None:
        super().__init__(max_batch_size=batch, batch_timeout=0.01)
        self.folder, self.precision, self.threads = folder, precision, threads

    def setup(self, device: str) -> None:
        import openvino

        torch.set_num_threads(1)
        self.kind: Any = read_model(self.folder)
        # By itself OpenVINO computes in BF16 where the CPU has it.
        hint = {"INFERENCE_PRECISION_HINT": "f32"} if self.precision == "fp32" else {}
        options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": self.threads, **hint}
        core = openvino.Core()
        self.compiled = core.compile_model(core.read_model(self.folder / GRAPH), "CPU", options)

    def decode_request(self, request: dict[str, str]) -> Any:
        return self.kind.decode(request)

    def batch(self, inputs: list[Any]) -> Any:
        return self.kind.collate(inputs)

    def predict(self, inputs: Any) -> np.ndarray:
        one = inputs if isinstance(inputs, dict) else self.kind.collate([inputs])
        logits = self.compiled(list(one.values()))[0]
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> Any:
        return self.kind.encode(output)


if __name__ == "__main__":
    folder, port, precision, workers, batch = sys.argv[1:]
    if port == "build":
        build(Path(folder), precision)
    else:
        threads = max(1, len(os.sched_getaffinity(0)) // int(workers))
        api = Served(Path(folder), precision, threads, int(batch))
        server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers), timeout=120)
        server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning")
