"""The baseline: ResNet-50 packed for TorchServe's own image_classifier, as its examples do it.

Source: examples/image_classifier/resnet_152_batch of TorchServe 0.12 (an eager model file, a state dict, a
handler of TorchServe's own). The weights are those of the kit's archive, so both answer the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from loadtest.errors import LoadTestError

BATCH_SIZE = 32
MODEL_FILE = '''"""ResNet-50 as the default handler wants it: the only class, built without arguments."""

from torchvision.models.resnet import Bottleneck, ResNet


class ImageClassifier(ResNet):
    def __init__(self):
        super().__init__(Bottleneck, [3, 4, 6, 3])
'''


def build_stock_archive(archive: Path, folder: Path) -> Path:
    """`stock.mar` in `folder`, with the weights and labels of the kit's ResNet-50 archive."""
    import torch
    from safetensors.torch import load

    with zipfile.ZipFile(archive) as packed:
        state, labels = load(packed.read("model.safetensors")), json.loads(packed.read("labels.json"))
    torch.save(state, folder / "stock.pth")
    (folder / "model.py").write_text(MODEL_FILE, encoding="utf-8")
    names = {str(index): label for index, label in enumerate(labels)}
    (folder / "index_to_name.json").write_text(json.dumps(names), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "model_archiver.model_packaging",
        "--model-name",
        "stock",
        "--version",
        "1.0",
    ]
    command += ["--model-file", "model.py", "--serialized-file", "stock.pth", "--handler", "image_classifier"]
    command += ["--extra-files", "index_to_name.json", "--export-path", ".", "--force"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadTestError(f"the stock archive cannot be packed: {done.stderr[-500:]}")
    return folder / "stock.mar"


def render_stock_properties(folder: Path, port: int) -> str:
    """Defaults but for the addresses, one worker and the batch size that suits it."""
    model: dict[str, object] = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": BATCH_SIZE,
        "maxBatchDelay": 100,
    }
    model |= {"defaultVersion": True, "marName": "stock.mar", "responseTimeout": 120}
    lines = [
        f"inference_address=http://127.0.0.1:{port}",
        f"management_address=http://127.0.0.1:{port + 1}",
        f"metrics_address=http://127.0.0.1:{port + 2}",
        f"grpc_inference_port={port + 3}",
        f"grpc_management_port={port + 4}",
        f"initial_worker_port={port + 920}",
        f"model_store={folder}",
        "load_models=stock.mar",
        f"models={json.dumps({'stock': {'1.0': model}})}",
    ]
    return "\n".join(lines) + "\n"
