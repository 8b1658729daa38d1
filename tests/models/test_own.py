"""A model with its own handler is built, served and validated like a shipped one; what is wrong is named."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from handlers.definition import read_packed
from models.build import build_archive
from models.definition import read_definition
from models.errors import BuildError
from models.request import WeightsRequest
from tests.conftest import RANDOM, from_path, write_definition
from tests.models.test_archives import LOAD_ALONE

NOT_GIVEN = WeightsRequest(source="")
HANDLER = '''
"""Scores a row of measurements: {"row": [..4 numbers..]} in, {"risk": …} out."""

import torch
from scale import SCALE

from handlers.kit_handler import KitHandler
from handlers.shared.errors import BadRequest


class Risk(KitHandler):
    def load_model(self):
        width = self.definition.model["width"]
        layers = torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
        return self.load_weights(torch.nn.Sequential(*layers))

    def decode(self, request):
        row = request.field("row", wanted='{"row": [..]}')
        if not isinstance(row, list) or len(row) != 4:
            raise BadRequest(400, '"row" must hold 4 numbers')
        return torch.tensor(row, dtype=torch.float32) * SCALE

    def encode(self, output, sample):
        return {"risk": float(output.sigmoid()), "unit": "share"}
'''
LINES = {"name": "risk", "handler": "handler.py", "example": "row.json", "options": {"width": 3}}
MEMORY = {"memory": {"worker_mib": 400, "request_mib": 160}}
ROW = {"row": [1, 2, 3, 4]}


def make_net(width=3):
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)).eval()


def write_risk(models, handler=HANDLER, **changes):
    """A folder `risk` with all its files; what is given of model.yaml is changed."""
    folder = models / "risk"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "handler.py").write_text(handler)
    (folder / "scale.py").write_text("SCALE = 0.1\n")
    (folder / "row.json").write_text(json.dumps(ROW))
    torch.save(make_net().state_dict(), folder / "net.pth")
    return write_definition(models, {**LINES, **changes})


@pytest.fixture
def define(tmp_path):
    return lambda *handler, **changes: write_risk(tmp_path / "models", *handler, **{**MEMORY, **changes})


def expect(net=None):
    with torch.no_grad():
        return float((net or make_net())(torch.tensor([ROW["row"]]) * 0.1).sigmoid())


def build(tmp_path, definition, weights=NOT_GIVEN):
    build_archive(definition, weights, store=tmp_path)
    return read_packed(tmp_path / "risk.mar")


def test_it_answers_as_the_net_itself(tmp_path, define):
    packed = build(tmp_path, define(weights="net.pth"))
    answer = packed.definition.example.expected
    assert answer == {"risk": pytest.approx(expect(), rel=1e-3), "unit": "share"}
    assert packed.definition.weights.startswith("user (net.pth")
    assert (packed.definition.limits, packed.definition.freeze) == ({}, True)
    with zipfile.ZipFile(tmp_path / "risk.mar") as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "unpacked")
    assert {"handler.py", "scale.py", "row.json", "model.safetensors"} <= names
    assert not [name for name in names if name.endswith(".pyc")]
    assert not names & {"net.pth", "model.yaml"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALONE],
        cwd=tmp_path / "unpacked", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["answer"]["risk"] == pytest.approx(expect(), rel=1e-3)


def test_an_example_may_be_json_as_it_is(tmp_path, define):
    packed = build(tmp_path, define(weights="net.pth", example=ROW))
    assert packed.definition.example.content_type == "application/json"
    assert json.loads(packed.body) == ROW
    assert packed.definition.example.expected["risk"] == pytest.approx(expect(), rel=1e-3)


def test_without_weights_it_keeps_the_ones_it_was_made_with(tmp_path, define):
    first = build(tmp_path, define(), RANDOM)
    assert first.definition.weights.startswith("random")
    (tmp_path / "risk.mar").unlink()
    assert build(tmp_path, define(), RANDOM).archive_id == first.archive_id


def test_a_changed_handler_is_built_again(tmp_path, define):
    first = build(tmp_path, define(weights="net.pth"))
    assert not build_archive(define(weights="net.pth"), NOT_GIVEN, store=tmp_path)
    second = build(tmp_path, define(HANDLER.replace('"share"', '"1"'), weights="net.pth"))
    assert second.definition.example.expected["unit"] == "1"
    assert second.archive_id != first.archive_id


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"handler": HANDLER.replace("KitHandler)", "object)")}, "one class, a KitHandler, .* got Risk"),
        (
            {"handler": HANDLER + "\n\nclass Other:\n    pass\n"},
            "one class, a KitHandler, .* got Risk, Other",
        ),
        ({"handler": "import nothing_of_that_name"}, "cannot be imported: ModuleNotFoundError"),
        ({"options": {"width": 5}}, "0.weight"),
        ({"handler": HANDLER.replace("!= 4", "!= 5")}, 'the example of risk is rejected: "row" must hold'),
        (
            {"handler": HANDLER.replace("len(row) != 4", "len(rows) != 4")},
            r"rejected: NameError: name 'rows' is not defined \(handler.py line 19 decode\)",
        ),
        ({"example": ""}, "example must name a file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, define, changes, what):
    with pytest.raises((BuildError, Exception), match=what):
        build(tmp_path, write_risk(tmp_path / "models", **{**MEMORY, "weights": "net.pth", **changes}))
    assert not (tmp_path / "risk.mar").exists()


def test_weights_of_elsewhere_are_taken_for_once(tmp_path, define):
    other = tmp_path / "other.pth"
    torch.manual_seed(9)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    torch.save(net.state_dict(), other)
    packed = build(tmp_path, define(weights="net.pth"), from_path(other))
    assert packed.definition.example.expected["risk"] == pytest.approx(expect(net), rel=1e-3)
    with zipfile.ZipFile(tmp_path / "risk.mar") as archive:
        assert not {"net.pth", "other.pth"} & set(archive.namelist()), "a pickle travels"


def test_what_a_worker_takes_is_measured(tmp_path, define):
    """The weights, 400 MB, are in it."""
    big = HANDLER.replace("torch.nn.Sequential(*layers)", "torch.nn.Sequential(*layers, Big())")
    big = big.replace("from scale import SCALE", "from big import Big\nfrom scale import SCALE")
    small = build(tmp_path, define(memory=None), RANDOM).definition.memory
    (tmp_path / "risk.mar").unlink()
    (tmp_path / "models" / "risk" / "big.py").write_text(BIG)
    large = build(tmp_path, define(big, memory=None), RANDOM).definition.memory
    assert list(small) == ["ipex fp32"]
    assert large["ipex fp32"].worker_mib - small["ipex fp32"].worker_mib > 350


BIG = """
import torch


class Big(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(100_000_000))

    def forward(self, x):
        return x + self.table[0]
"""


def test_the_handler_in_the_docs_is_built_and_answers(tmp_path):
    """docs/models.md shows handler.py and model.yaml of a model `price`."""
    page = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:yaml|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    folder = tmp_path / "models" / "price"
    folder.mkdir(parents=True)
    for name, begins in (("model.yaml", "name: price"), ("handler.py", "# handler.py")):
        (folder / name).write_text(next(one for one in blocks if one.startswith(begins)))
    (folder / "net.py").write_text(
        "import functools, torch\nPrice = functools.partial(torch.nn.Linear, 2, 1)\n"
    )
    torch.manual_seed(5)
    linear = torch.nn.Linear(2, 1)
    torch.save(linear.state_dict(), folder / "price.pt")
    build_archive(read_definition("price", tmp_path / "models"), NOT_GIVEN, store=tmp_path)
    expected = math.exp(linear((torch.tensor([3.0, 80.0]) - 40) / 50).item())
    answer = read_packed(tmp_path / "price.mar").definition.example.expected
    assert answer == {"eur": pytest.approx(expected, rel=1e-3)}
