"""The baselines: a model of the kit's packed as TorchServe's own examples do it, with the same weights.

Sources, both of TorchServe 0.12: examples/image_classifier/resnet_152_batch (an eager model file, a state
dict, a handler of TorchServe's own) and examples/Huggingface_Transformers (a handler of the example's). There
is no handler of TorchServe's own for BERT: its text_classifier takes texts by torchtext, of which there is no
version for this PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.servers.base import Running, Server, Testbed, wait_until
from server.archives import read_archive
from server.launch import spawn
from server.rundir import MARK, RunDir
from server.stop import stop

BATCH_SIZE = 32
"""With one worker: what the speed targets are measured against."""
LEAST_AGREEMENT = 0.7
"""With eager FP32 in the kit's preprocessing: image_classifier resizes to 256 pixels instead of the weights'
own 232 (80 % of the labels were the same); the example cuts texts at 150 tokens."""
START_SECONDS = 300
MODEL_FILE = '''"""The model as the default handler wants it: the only class, built without arguments."""

from torchvision.models.{module} import {names}


class ImageClassifier({base}):
    def __init__(self):
        super().__init__({arguments})
'''
MODEL_FILES = {
    "resnet50": MODEL_FILE.format(
        module="resnet", names="Bottleneck, ResNet", base="ResNet", arguments="Bottleneck, [3, 4, 6, 3]"
    ),
    "densenet121": MODEL_FILE.format(
        module="densenet", names="DenseNet", base="DenseNet", arguments="32, (6, 12, 24, 16), 64"
    ),
}
"""With torchvision's own arguments of `resnet50` and `densenet121`."""
TEXT_HANDLER = Path(__file__).with_name("stock_transformer.py")
TEXT_FILES = ("config.json", "tokenizer.json", "definition.json", "model.safetensors")


def build_image_archive(archive: Path, folder: Path, name: str) -> None:
    """For the image_classifier, with the weights and labels of the kit's archive."""
    import torch
    from safetensors.torch import load

    with zipfile.ZipFile(archive) as packed:
        state = load(packed.read("model.safetensors"))
    labels = read_archive(archive).definition.labels
    torch.save(state, folder / "stock.pth")
    (folder / "model.py").write_text(MODEL_FILES[name], encoding="utf-8")
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


HANDLERS: Mapping[str, tuple[str, Callable[[Path, Path, str], None]]] = {
    **dict.fromkeys(MODEL_FILES, ("image_classifier", build_image_archive)),
    "bert": ("the example's Transformer handler", build_text_archive),
}
"""Model → what it is packed with in words, and how: (kit's archive, folder, name) → `<name>.mar` there."""


def stock_server(
    name: str,
    model: str,
    *,
    batch_size: int | None,
    environment: Mapping[str, str] | None = None,
    memory_mib: int = 0,
) -> Server:
    """TorchServe 0.12 as it comes, eager FP32, with a model of the kit's archive under the model's own name.

    With a batch size it has one worker; None sets nothing of the model. `environment` is added to ours.
    """
    if model not in HANDLERS:
        raise LoadTestError(f"stock TorchServe serves {', '.join(HANDLERS)}: got {model}")
    handler, build = HANDLERS[model]
    sizes = "as it comes" if batch_size is None else f"one worker, batch size {batch_size}"

    @contextlib.contextmanager
    def start(testbed: Testbed) -> Iterator[Running]:
        testbed.say(f"  starting {name}")
        folder, port = testbed.place("stock")
        run, archive = RunDir.at(folder), testbed.store / f"{model}.mar"
        build(archive, run.path, model)
        properties = render_stock_properties(run.path, port, model, batch_size)
        run.properties.write_text(properties, encoding="utf-8")
        run.temporary.mkdir(exist_ok=True)
        running = Running(
            name=name,
            models=(model,),
            url=f"http://127.0.0.1:{port}",
            run=run,
            archives={model: archive},
            how=f"TorchServe 0.12, {handler}, eager FP32, {sizes}",
            least_agreement=LEAST_AGREEMENT,
        )
        try:
            _launch(run, environment or {})
            wait_until(running, lambda: _is_ready(running, model), START_SECONDS)
            yield running
        finally:
            running.resume()
            stop(run)

    return Server(name=name, open=start, memory_mib=memory_mib)


def render_stock_properties(folder: Path, port: int, model: str, batch_size: int | None) -> str:
    """Defaults but for addresses and token, and where it is given, the batch size with one worker.

    TorchServe 0.12's defaults: as many workers as CPUs, batch size 1, as many threads as CPUs in each worker.
    """
    addresses = ("inference", "management", "metrics")
    lines = [f"{name}_address=http://127.0.0.1:{port + number}" for number, name in enumerate(addresses)]
    lines += [f"grpc_inference_port={port + 3}", f"grpc_management_port={port + 4}"]
    # It listens on loopback, for an experiment's minutes: 0.12 would ask for a token.
    lines += ["disable_token_authorization=true"]
    lines += [f"initial_worker_port={port + 920}", f"model_store={folder}", f"load_models={model}.mar"]
    if batch_size is not None:
        sizes = {"minWorkers": 1, "maxWorkers": 1, "batchSize": batch_size, "maxBatchDelay": 100}
        rest = {"defaultVersion": True, "marName": f"{model}.mar", "responseTimeout": 120}
        lines.append(f"models={json.dumps({model: {'1.0': {**sizes, **rest}}})}")
    return "\n".join(lines) + "\n"


def _launch(run: RunDir, environment: Mapping[str, str]) -> None:
    prefix = Path(sys.executable).parent
    command = [str(prefix / "torchserve"), "--start", "--foreground", "--no-config-snapshots"]
    command += ["--ts-config", str(run.properties), "--model-store", str(run.path)]
    temporary = {"TMPDIR": str(run.temporary), "TEMP": str(run.temporary)}
    path = f"{prefix}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    known = {**os.environ, "PATH": path, MARK: str(run.path), **temporary, **environment}
    spawn(command, run.path, known, run.path / "console.log")


def _is_ready(running: Running, model: str) -> bool:
    workers = running.client.describe(model).get("workers", [])
    return bool(workers) and all(worker["status"] == "READY" for worker in workers)
