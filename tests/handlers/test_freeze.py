"""Models that no graph holds are served eager where the handler says so, and checked as all others."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

from handlers.backends.catalogue import BACKENDS
from handlers.backends.loader import LoadState, open_loader
from handlers.definition import read_folder
from handlers.kit_handler import KitHandler
from handlers.request import Request
from handlers.shared.errors import BadRequest, LoadError
from handlers.shared.options import LoadOptions
from handlers.shared.outputs import relative_error
from handlers.shared.steps import StepError
from models.ssdlite.handler import Detector
from tests.handlers.archives import write_archive

ABLE = [name for name in ("eager", "ipex") if BACKENDS[name].is_installed()]


class Bright(torch.nn.Module):
    """A box for each row of an image that is brighter than its weight: images in, as many boxes out."""

    def __init__(self) -> None:
        super().__init__()
        self.least = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        found = [(image.mean(dim=(0, 2)) > self.least).nonzero()[:, 0] for image in images]
        return [
            {"boxes": torch.stack([rows, rows + 1], dim=1).float(), "labels": torch.ones_like(rows)}
            for rows in found
        ]


class Rows(KitHandler):
    """A body is {"rows": […], "width": …}, the brightness of each row."""

    freeze = False

    def load_model(self) -> torch.nn.Module:
        return self.load_weights(Bright())

    def decode(self, request: Request) -> torch.Tensor:
        image = request.json(wanted="rows and width")
        rows, width = image["rows"], image["width"]
        if not rows:
            raise BadRequest(422, "an image has rows")
        return torch.tensor(rows)[None, :, None].expand(3, len(rows), width)

    def collate(self, samples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return list(samples)

    def encode(self, output: dict[str, torch.Tensor], sample: torch.Tensor) -> Any:
        return output["boxes"].tolist()

    def make_examples(self, count: int) -> list[torch.Tensor]:
        bodies = [{"rows": [0.1, 0.9, 0.8][: number + 1], "width": 2 + number} for number in range(count)]
        return [self.decode(Request(content=body)) for body in bodies]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_archive(tmp_path, Bright(), example=b'{"rows": [0.9], "width": 2}')


def load(folder: Path, kind: type[KitHandler] = Rows, **options: Any) -> KitHandler:
    handler = kind()
    handler.configure(read_folder(folder), folder)
    handler.load(LoadOptions(**{"precision": "fp32", "backend": "eager", "threads": 1, **options}))
    return handler


def answer(handler: KitHandler, *bodies: Any) -> tuple[list[int], list[Any]]:
    replies = handler.answer([Request(content=body) for body in bodies])
    return [reply.status for reply in replies], [json.loads(reply.body) for reply in replies]


def test_images_of_any_sizes_have_as_many_boxes_as_there_are(folder):
    statuses, answers = answer(
        load(folder),
        {"rows": [0.9, 0.1, 0.7, 0.6], "width": 3},
        {"rows": [], "width": 3},
        {"rows": [0.1], "width": 1},
        {"rows": [0.6], "width": 9},
    )
    assert statuses == [200, 422, 200, 200]
    assert [answers[0], *answers[2:]] == [[[0, 1], [2, 3], [3, 4]], [], [[0, 1]]]


@pytest.mark.parametrize("backend", ABLE)
def test_what_is_not_done_is_told(folder, backend):
    described = load(folder, backend=backend).describe()
    steps = {step["name"]: (step["status"], step["reason"]) for step in described["steps"]}
    assert steps["trace"] == steps["freeze"] == ("off", "the handler sets freeze = False")
    assert steps["self_check"][0] == "applied"
    assert (described["freeze"], described["graph"]["kind"]) == (False, "eager")


@pytest.mark.parametrize("off", [set(), {"freeze"}])
@pytest.mark.parametrize("backend", sorted(BACKENDS.keys() - {"eager", "ipex"}))
def test_a_backend_that_needs_a_graph_is_rejected(folder, backend, off):
    with pytest.raises(LoadError, match="freeze = False: use BACKEND=ipex or eager"):
        load(folder, backend=backend, off=frozenset(off))


def test_int8_without_a_graph_would_be_int8_by_name_alone(folder):
    with pytest.raises(LoadError, match="ipex int8 needs a graph"):
        load(folder, backend="ipex", precision="int8")


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("boxes", lambda one: one[:-1], "inf"),
        ("boxes", lambda one: one * 1.5, "0.5"),
        ("labels", lambda one: one.tolist(), "inf"),
    ],
    ids=["a box less", "boxes elsewhere", "a tensor less"],
)
def test_the_check_against_eager_still_runs(folder, name, change, error):
    class Wrong(Rows):
        def split(self, outputs: Any, samples: Any) -> list[Any]:
            split = super().split(outputs, samples)
            if len(samples) == 4:
                split[2] = {**split[2], name: change(split[2][name])}
            return split

    with pytest.raises(StepError, match=f"differs from eager FP32: relative error {error}"):
        load(folder, Wrong)


def test_outputs_without_a_box_are_alike_and_others_are_far_apart():
    none, one = torch.empty(0, 4), torch.ones(1, 4)
    assert relative_error(none, none) == 0
    assert relative_error(one, none) == relative_error(none, one) == float("inf")


def test_inputs_are_kept_although_the_next_call_reuses_them(folder):
    class Reuses(Rows):
        def collate(self, samples: Sequence[torch.Tensor]) -> Any:
            return {"images": [self.room.fill_(sample.mean()) for sample in samples]}

    handler = Reuses()
    handler.configure(read_folder(folder), folder)
    handler.room = torch.empty(1)
    options = LoadOptions(precision="fp32", backend="eager", threads=1)
    state = LoadState(task=handler, options=options, loader=open_loader("eager"))
    state.examples = handler.make_examples(4)
    (inputs,) = state.inputs(handler.layout.list_shapes()[-1])
    kept = inputs["images"][0].item()
    handler.room.fill_(-1)
    assert inputs["images"][0].item() == kept != -1


def make_image(width: int, height: int) -> bytes:
    chance, body = torch.Generator().manual_seed(0), io.BytesIO()
    pixels = torch.randint(256, (height, width, 3), dtype=torch.uint8, generator=chance)
    Image.fromarray(pixels.numpy()).save(body, "PNG")
    return body.getvalue()


@pytest.mark.parametrize("backend", ABLE)
def test_a_detector_of_torchvision_is_served(tmp_path, backend):
    torch.manual_seed(0)
    labels, threshold = ("background", "cat", "dog"), 0.9
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=len(labels)).eval()
    for module in model.modules():  # by its own random weights all scores are the same
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)
    folder = write_archive(tmp_path, model, example=make_image(80, 60), labels=labels, threshold=threshold)
    handler = load(folder, Detector, backend=backend)
    images = [make_image(80, 60), make_image(200, 300)]
    statuses, (first, rejected, second) = answer(handler, images[0], b"no image", images[1])
    assert statuses == [200, 415, 200]
    assert "JPEG" in rejected["error"]
    assert len(first) < 300
    with torch.no_grad():
        expected = model([handler.decode(Request(content=one)) for one in images])
    for got, want in zip((first, second), expected, strict=True):
        kept = want["scores"] >= threshold
        assert 0 < len(got) == int(kept.sum())
        assert [one["score"] for one in got] == pytest.approx(want["scores"][kept].tolist(), rel=1e-4)
        assert [labels.index(one["label"]) for one in got] == want["labels"][kept].tolist()
        for one, box in zip(got, want["boxes"][kept].tolist(), strict=True):
            assert one["box"] == pytest.approx(box, abs=0.1)
