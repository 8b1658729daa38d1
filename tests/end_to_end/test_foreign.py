"""Archives that others made by torch-model-archiver: one command each, answers as of TorchServe alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.models import resnet18

from tests.end_to_end.kit import Answer, Kit, find_port, running

BIN = Path(sys.executable).parent
HANDLER = """
from ts.torch_handler.base_handler import BaseHandler
import torch

class Sums(BaseHandler):
    def preprocess(self, data):
        bodies = [row.get("body") or row.get("data") for row in data]
        return torch.tensor([body["row"] if isinstance(body, dict) else [float(body)] * 4 for body in bodies])

    def postprocess(self, output):
        return [{"sum": round(value, 4)} for value in output.flatten().tolist()]
"""


def pack(
    folder: Path, name: str, module: torch.nn.Module, example: torch.Tensor, handler: str, **words: str
) -> Path:
    file = folder / f"{name}.pt"
    torch.jit.trace(module.eval(), example).save(file)
    options = [word for key, value in words.items() for word in (f"--{key.replace('_', '-')}", value)]
    subprocess.run(
        [BIN / "torch-model-archiver", "--model-name", name, "--version", "2.0", "--serialized-file", file,
         "--handler", handler, "--export-path", folder, *options],
        check=True,
    )  # fmt: skip
    return folder / f"{name}.mar"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("classifier")
    return pack(folder, "resnet18", resnet18(), torch.rand(1, 3, 224, 224), "image_classifier")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its YAML beats what is planned, and so is planned."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "sums.py").write_text(HANDLER)
    (folder / "config.yaml").write_text("batchSize: 3\nmaxBatchDelay: 40\n")
    net = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(net.weight)
    torch.nn.init.zeros_(net.bias)
    words = {"config_file": str(folder / "config.yaml")}
    return pack(folder, "sums", net, torch.rand(1, 4), str(folder / "sums.py"), **words)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[int]:
    """A port of plain TorchServe; its folder of archives is `tmp_path`."""
    port = find_port()
    addresses = {
        name: f"http://127.0.0.1:{port + n}" for n, name in enumerate(("inference", "management", "metrics"))
    }
    lines = [f"{name}_address={address}" for name, address in addresses.items()]
    ports = [
        f"grpc_inference_port={port + 3}",
        f"grpc_management_port={port + 4}",
        "default_workers_per_model=1",
    ]
    (tmp_path / "plain.properties").write_text(
        "\n".join([*lines, *ports, "disable_token_authorization=true"])
    )
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TEMP": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    with (tmp_path / "plain.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, BIN / "torchserve", "--start", "--foreground", "--ncs",
             "--model-store", tmp_path, "--models", "all", "--ts-config", tmp_path / "plain.properties"],
            cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    yield port
    subprocess.run([BIN / "torchserve", "--stop"], env=environment, check=False, capture_output=True)
    process.terminate()
    process.wait(30)


def ask(port: int, path: str, body: bytes, content_type: str) -> Answer:
    """Again while its workers load."""
    ends = time.monotonic() + 120
    while True:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/predictions/{path}", body, {"Content-Type": content_type}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(status=answer.status, body=answer.read())
        except OSError:
            assert time.monotonic() < ends
            time.sleep(1)


def make_photo() -> bytes:
    body = io.BytesIO()
    Image.effect_mandelbrot((300, 260), (-2, -1.5, 1, 1.5), 60).convert("RGB").save(body, "JPEG")
    return body.getvalue()


def serve(archive: Path, folder: Path) -> tuple[Kit, list[str]]:
    kit = Kit(run_dir=folder / "run", store=folder, port=find_port())
    return kit, [f"MODELS={archive}", f"PORT={kit.port}", "INSTANCES=1"]


def test_a_stock_image_classifier_is_served_and_verified(classifier, plain, tmp_path):
    pytest.importorskip("captum", reason="image_classifier needs it: an extra of make serve")
    (tmp_path / classifier.name).symlink_to(classifier)
    photo = make_photo()
    expected = ask(plain, "resnet18", photo, "application/octet-stream").json
    kit, words = serve(classifier, tmp_path)
    with running(kit, *words) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        assert kit.verify() == (0, {})
        for path in ("resnet18", "resnet18/2.0"):
            answer = kit.predict(path, photo)
            assert (answer.status, answer.json) == (200, pytest.approx(expected, abs=1e-5))
        assert kit.predict("resnet18/1.0", photo).status == 404
        rows = json.loads(kit.call("server", "verify", "FORMAT=json").stdout)["rows"]
        worker = {row["name"]: row for row in rows if row["pid"]}
        assert {worker[name]["state"] for name in ("CPU affinity", "allocator", "OpenMP", "launcher")} == {
            "passed"
        }
        (unknown,) = (row for row in rows if row["name"] == "computation")
        assert unknown["state"] == "not checkable"
        assert "TorchScript" in unknown["actual"]


def test_a_handler_of_its_own_gets_json_decoded_and_forms_as_torchserve_gives_them(own, plain, tmp_path):
    (tmp_path / own.name).symlink_to(own)
    row, form = json.dumps({"row": [1, 2, 3, 4.5]}).encode(), b"data=2.5"
    requests = ((row, "application/json"), (form, "application/x-www-form-urlencoded"))
    expected = [ask(plain, "sums", body, kind).body for body, kind in requests]
    kit, words = serve(own, tmp_path)
    with running(kit, *words) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        answers = [kit.predict("sums", body, kind) for body, kind in requests]
        assert [(answer.status, answer.body) for answer in answers] == [(200, body) for body in expected]
        assert kit.predict("sums", row, "application/json").json == {"sum": 10.5}
        assert kit.verify() == (0, {})
        (described,) = kit.request("models/sums", management=True).json
        assert (described["batchSize"], described["maxBatchDelay"]) == (3, 40)


def test_what_its_yaml_would_beat_is_rejected_before_a_start(own, tmp_path):
    kit, words = serve(own, tmp_path)
    done = kit.call("server", "serve", *words, "BATCH=8")
    assert (done.returncode, kit.processes()) == (2, [])
    assert "batchSize" in done.stderr
