"""Handlers as authors write them: per request, with any tensors, or over whole batches as for TorchServe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.definition import Definition, Example, Origin, Precision, read_folder, render_definition
from handlers.kit_handler import KitHandler
from handlers.request import Request
from handlers.shared.errors import BadRequest
from handlers.shared.options import LoadOptions
from handlers.shared.steps import StepError
from tests.handlers.stub import StubHandler, take_stub

RULES = Precision(self_check_relative_error=1e-3, answer_relative=0.01, answer_absolute=0.001)


class House(torch.nn.Module):
    """Two numbers a sample, with an answer and how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layers(rows)
        return {"price": out[:, 0], "range": out[:, 1:]}


class Prices(KitHandler):
    """What docs ask an author for, and no more."""

    def load_model(self) -> torch.nn.Module:
        return House().eval()

    def decode(self, request: Request) -> torch.Tensor:
        row = request.field("row", wanted='{"row": [1, 2]}')
        if not isinstance(row, list) or len(row) != 2:
            raise BadRequest(422, "a row has two numbers")
        return torch.tensor(row, dtype=torch.float32)

    def encode(self, output: dict[str, Any], sample: torch.Tensor) -> dict[str, Any]:
        return {"price": float(output["price"]), "range": output["range"].tolist()}


@pytest.fixture
def folder(tmp_path) -> Path:
    definition = Definition(
        name="prices",
        handler="prices",
        weights="random",
        example=Example(file="example.json", content_type="application/json"),
        batch_sizes=(1, 2, 4),
        precisions={"fp32": RULES},
        model={},
        inputs="",
        origin=Origin(source="random", path="", files=""),
        built_with={},
    )
    (tmp_path / "definition.json").write_text(render_definition(definition))
    (tmp_path / "example.json").write_text('{"row": [1, 2]}')
    return tmp_path


def load(folder: Path, kind: type[Prices] = Prices) -> Prices:
    handler = kind()
    handler.configure(read_folder(folder), folder)
    handler.load(LoadOptions(precision="fp32", backend="eager", threads=1))
    return handler


def answer(handler: KitHandler, *bodies: bytes) -> tuple[list[int], list[Any]]:
    replies = handler.answer([Request(content=body) for body in bodies])
    return [reply.status for reply in replies], [json.loads(reply.body) for reply in replies]


def test_any_model_is_served_frozen_and_checked(folder):
    handler, model = load(folder), House().eval()
    assert handler.describe()["graph"]["kind"] == "frozen torchscript"
    statuses, answers = answer(handler, b'{"row": [3, 4]}', b'{"row": [3]}', b'{"row": [-1, 9]}')
    assert statuses == [200, 422, 200]
    with torch.no_grad():
        out = model.layers(torch.tensor([[3.0, 4.0], [-1.0, 9.0]])).tolist()
    for got, (price, low, high) in zip(answers[::2], out, strict=True):
        assert got == pytest.approx({"price": price, "range": pytest.approx([low, high])})


def test_a_wrong_output_anywhere_in_the_tree_fails_the_load(folder, monkeypatch):
    class Wrong(Prices):
        def split(self, outputs: Any, samples: Any) -> list[Any]:
            split = super().split(outputs, samples)
            if len(samples) > 1:  # of a warmed batch
                split[0]["range"] = split[0]["range"] * 1.01
            return split

    with pytest.raises(StepError, match="differs from eager FP32"):
        load(folder, Wrong)


def test_nan_fails_the_load_whatever_else_is_right(folder):
    class Broken(Prices):
        def split(self, outputs: Any, samples: Any) -> list[Any]:
            split = super().split(outputs, samples)
            if len(samples) == 4:
                split[2]["price"] = split[2]["price"] * float("nan")
            return split

    with pytest.raises(StepError, match="relative error nan"):
        load(folder, Broken)


class Doubled(StubHandler):
    """Overrides whole batches on top of the kit's own."""

    def preprocess(self, data: Any) -> Any:
        return [2 * sample for sample in super().preprocess(data)]

    def postprocess(self, data: Any) -> list[Any]:
        return [{**one, "batch": len(data)} for one in super().postprocess(data)]


def test_an_overridden_method_sees_the_good_samples_of_the_batch():
    statuses, answers = answer(take_stub(Doubled()), b"20", b"", b"40")
    assert statuses == [200, 400, 200]
    assert [answers[0], answers[2]] == [
        {"tokens": 20, "half": 20.0, "batch": 2},
        {"tokens": 40, "half": 40.0, "batch": 2},
    ]


class Classic(StubHandler):
    """As a handler of TorchServe's own: rows in, one tensor through the model, a list out."""

    def preprocess(self, data: Any) -> Any:
        rows = [row.get("data") or row.get("body") for row in data]
        return torch.tensor([float(row) for row in rows])

    def postprocess(self, data: Any) -> list[Any]:
        return [float(one) for one in data]


def test_a_handler_of_whole_batches_is_served():
    assert answer(take_stub(Classic()), b"20", b"40") == ([200, 200], [10.0, 20.0])


def test_what_an_overridden_method_raises_fails_the_batch():
    statuses, answers = answer(take_stub(Classic()), b"20", b"x")
    assert statuses == [500, 500]
    assert answers[0]["error"] == "the request could not be answered: ValueError"


class Short(StubHandler):
    def postprocess(self, data: Any) -> list[Any]:
        return super().postprocess(data)[1:]


def test_too_few_answers_are_never_given_to_the_wrong_requests():
    statuses, _ = answer(take_stub(Short()), b"20", b"40")
    assert statuses == [500, 500]


class Lost(StubHandler):
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return super().inference(data)[1:]


def test_too_few_outputs_are_never_given_to_the_wrong_samples():
    statuses, _ = answer(take_stub(Lost()), b"20 30", b"40")
    assert statuses == [500, 500]


WORKER = """
import sys
{ts}
from handlers.kit_handler import KitHandler
names = [one.__module__ for one in KitHandler.__mro__]
print([one in sys.modules for one in ("ts", "openvino", "intel_extension_for_pytorch")], names)
"""


@pytest.mark.parametrize(("ts", "imported"), [("import ts.model_loader", True), ("", False)])
def test_torchserves_base_class_is_there_in_its_worker_alone_and_imports_no_backend(ts, imported):
    environment = {**os.environ, "TS_IPEX_ENABLE": "true"}
    command = [sys.executable, "-c", WORKER.format(ts=ts)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"[{imported}, False, False]")
    assert ("ts.torch_handler.base_handler" in done.stdout) is imported
    assert "OpenVINO" not in done.stdout + done.stderr
