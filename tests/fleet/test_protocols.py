"""Public clients of the standard protocols, first against KServe's own server, then against the live kit."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from models.build import build_archive
from models.definition import read_definition
from models.new import write_model
from models.request import WeightsRequest
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, write_definition
from tests.docs.pages import ROOT
from tests.end_to_end.kit import Kit, find_port, running
from tests.models.test_text_tasks import make_encoder

TEXTS = ("good", "an awful room")


@pytest.fixture(scope="module")
def reference(fleet: Path) -> Iterator[str]:
    port = find_port()
    script = Path(__file__).parent / "reference.py"
    server = subprocess.Popen(
        [fleet, script, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ends = time.monotonic() + 180
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < ends
                assert server.poll() is None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def test_the_checks_pass_at_kserves_own_server(reference, run_json):
    checks = run_json("clients.py", reference, "lengths", "none", *TEXTS)
    assert {name for name, problem in checks.items() if problem} == set(), checks
    assert len(checks) >= 6


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """Images, texts and embeddings."""
    folder = tmp_path_factory.mktemp("protocols")
    write_model(make_encoder(folder / "encoder"), folder=folder / "models")
    for raw in (TINY_IMAGE, TINY_TEXT):
        build_archive(write_definition(folder / "models", raw), RANDOM, store=folder / "store")
    encoder = read_definition("encoder", folder / "models")
    build_archive(encoder, WeightsRequest(source=""), store=folder / "store", precisions=["fp32"])
    kit = Kit(run_dir=folder / "run", store=folder / "store", port=find_port())
    kit.plan("encoder tiny_image tiny_text")
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "image.png"
    Image.new("RGB", (64, 48), "red").save(file)
    return file


@pytest.mark.parametrize("model", ["tiny_text", "tiny_image", "encoder"])
def test_the_same_checks_pass_here(kit, run_json, image, model):
    items = [f"@{image}"] * 2 if model == "tiny_image" else TEXTS
    flags = ["--embeddings"] if model == "encoder" else []
    checks = run_json("clients.py", *flags, f"http://127.0.0.1:{kit.port}", model, kit.token, *items)
    assert {name for name, problem in checks.items() if problem} == set(), checks
    assert len(checks) >= 6


def test_the_clients_in_the_docs_print_answers(kit, fleet, image, tmp_path):
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8").split("## Protocols")[1]
    clients = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(clients) == 2
    (tmp_path / "run").symlink_to(kit.run_dir)
    image.rename(tmp_path / "photo.jpg")
    for client in clients:
        for shown, here in {"8080": str(kit.port), "resnet50": "tiny_image", "minilm": "encoder"}.items():
            client = client.replace(shown, here)
        done = subprocess.run(
            [fleet, "-c", client], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


SCHEMATHESIS = """
# a deadline of 1 ms, which the document allows
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]
# how many tokens a batch takes, a schema cannot say
checks.positive_data_acceptance.expected-statuses = ["200", "413", "504"]
[[operations]]
# nor how many elements a tensor of a shape has, nor what is an image
include-path-regex = "infer$|image"
checks.positive_data_acceptance.expected-statuses = ["200", "400", "413", "415", "504"]
"""


def test_what_the_own_document_allows_is_accepted_and_nothing_breaks(kit, fleet, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(SCHEMATHESIS)
    document = tmp_path / "openapi.json"
    document.write_bytes(kit.request("openapi.json").body)
    assert json.loads(document.read_text())["openapi"] == "3.1.0"
    command = [
        fleet.parent / "schemathesis", "run", document, "--url", f"http://127.0.0.1:{kit.port}", "--seed=1",
        "-H", f"Authorization: Bearer {kit.token}", "--max-examples", "10", "--request-timeout", "60",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-1000:]
    assert kit.verify() == (0, {})
