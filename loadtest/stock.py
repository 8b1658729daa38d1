"""The baselines: a model of the kit's packed as TorchServe's own examples do it, with the same weights.

Sources, both of TorchServe 0.12: examples/image_classifier/resnet_152_batch (an eager model file, a state
dict, a handler of TorchServe's own) and examples/Huggingface_Transformers (a handler of the example's). There
is no handler of TorchServe's own for BERT: its text_classifier takes texts by torchtext, of which there is no
version for this PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import LoadTestError

BATCH_SIZE = 32
MODEL_FILE = '''"""ResNet-50 as the default handler wants it: the only class, built without arguments."""

from torchvision.models.resnet import Bottleneck, ResNet


class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(Bottleneck, [3, 4, 6, 3])
'''
TEXT_HANDLER = Path(__file__).with_name("stock_transformer.py")
TEXT_FILES = ("config.json", "tokenizer.json", "labels.json", "model.safetensors")


def build_image_archive(archive: Path, folder: Path, name: str) -> None:
    """For the image_classifier, with the weights and labels of the kit's ResNet-50 archive."""
    import torch
    from safetensors.torch import load

    with zipfile.ZipFile(archive) as packed:
        state, labels = load(packed.read("model.safetensors")), json.loads(packed.read("labels.json"))
    torch.save(state, folder / "stock.pth")
    (folder / "model.py").write_text(MODEL_FILE, encoding="utf-8")
    names = {str(index): label for index, label in enumerate(labels)}
    (folder / "index_to_name.json").write_text(json.dumps(names), encoding="utf-8")
    how = ["--model-file", "model.py", "--serialized-file", "stock.pth", "--handler", "image_classifier"]
    _pack(folder, name, [*how, "--extra-files", "index_to_name.json"])


def build_text_archive(archive: Path, folder: Path, name: str) -> None:
    """For the example's handler, with the weights, labels and tokenizer of the kit's BERT archive."""
    with zipfile.ZipFile(archive) as packed:
        for file in TEXT_FILES:
            packed.extract(file, folder)
    *extra, weights = TEXT_FILES
    how = ["--serialized-file", weights, "--handler", str(TEXT_HANDLER)]
    _pack(folder, name, [*how, "--extra-files", ",".join(extra)])


def _pack(folder: Path, name: str, how: list[str]) -> None:
    """The archiver stages in the folder of temporary files, by the model's name: not two at the same time."""
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name]
    command += ["--version", "1.0", *how, "--export-path", ".", "--force"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadTestError(f"the stock archive cannot be packed: {done.stderr[-500:]}")


@dataclass(frozen=True, kw_only=True)
class Stock:
    """One baseline."""

    model: str
    """Its name in URLs."""
    handler: str
    """What it is packed with, in words."""
    build: Callable[[Path, Path, str], None]
    """(kit's archive, folder, name) → `<name>.mar` in the folder."""
    batch_size: int | None
    """With one worker; None sets nothing of a model."""


IMAGES = Stock(model="stock", handler="image_classifier", build=build_image_archive, batch_size=BATCH_SIZE)
"""What the speed targets are measured against."""


def render_stock_properties(folder: Path, port: int, stock: Stock = IMAGES) -> str:
    """Defaults but for the addresses, and where it has one, the batch size with one worker.

    TorchServe 0.12's defaults: as many workers as CPUs, batch size 1, as many threads as CPUs in each worker.
    """
    lines = [
        f"inference_address=http://127.0.0.1:{port}",
        f"management_address=http://127.0.0.1:{port + 1}",
        f"metrics_address=http://127.0.0.1:{port + 2}",
        f"grpc_inference_port={port + 3}",
        f"grpc_management_port={port + 4}",
        f"initial_worker_port={port + 920}",
        f"model_store={folder}",
        f"load_models={stock.model}.mar",
    ]
    if stock.batch_size is not None:
        lines.append(f"models={_render_model(stock.model, stock.batch_size)}")
    return "\n".join(lines) + "\n"


def _render_model(name: str, batch_size: int) -> str:
    model: dict[str, object] = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": batch_size,
        "maxBatchDelay": 100,
    }
    model |= {"defaultVersion": True, "marName": f"{name}.mar", "responseTimeout": 120}
    return json.dumps({name: {"1.0": model}})
